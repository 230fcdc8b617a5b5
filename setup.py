"""The one thing pyproject.toml cannot say in a stable way: the optional C extension."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/chiasm/engines/embedded/native")
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-pthread",
    "-ffp-contract=fast",  # a product and a sum become one instruction where there is one
    "-fno-math-errno",  # without these two, square roots and comparisons are not vectorised;
    "-fno-trapping-math",  # nothing here lets the compiler reorder sums, on which reproducible results rest
]

setup(
    ext_modules=[
        Extension(
            "chiasm.engines.embedded.decoder._native",
            sorted(map(str, NATIVE.glob("*.c"))),
            depends=sorted(map(str, (*NATIVE.glob("*.h"), *NATIVE.glob("*.inc")))),
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,  # without compiler or Python headers the engine computes with torch instead
        )
    ],
)
