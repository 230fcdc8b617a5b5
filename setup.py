"""The one thing pyproject.toml cannot say in a stable way: the optional C extensions."""

from pathlib import Path

from setuptools import Extension, setup

ENGINE = Path("src/chiasm/engines/embedded/native")
MEDIA = Path("src/chiasm/media/native")
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-pthread",
    "-ffp-contract=fast",  # a product and a sum become one instruction where there is one
    "-fno-math-errno",  # without these two, square roots and comparisons are not vectorised;
    "-fno-trapping-math",  # nothing here lets the compiler reorder sums, on which reproducible results rest
]


def extension(name: str, folder: Path, flags: list[str]) -> Extension:
    """All C files of a folder as one extension module."""
    return Extension(
        name,
        sorted(map(str, folder.glob("*.c"))),
        depends=sorted(map(str, (*folder.glob("*.h"), *folder.glob("*.inc")))),
        extra_compile_args=flags,
        extra_link_args=["-pthread", "-lm", "-ldl"],
        py_limited_api=True,
        optional=True,  # without compiler or Python headers torch, or Pillow, computes instead
    )


setup(
    ext_modules=[
        extension("chiasm.engines.embedded.decoder._native", ENGINE, FLAGS),
        # weights of a resize must round as Pillow's do
        extension("chiasm.media.kernels._native", MEDIA, ["-std=gnu11", "-O3", "-ffp-contract=off"]),
    ],
)
