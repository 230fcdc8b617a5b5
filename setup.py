"""The one thing pyproject.toml cannot say in a stable way: the optional C extension."""

from setuptools import Extension, setup

# What -ffast-math gives vectorised sums, without the part that changes the whole process's rounding of tiny numbers.
SUMS_IN_ANY_ORDER = ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"]

setup(
    ext_modules=[
        Extension(
            "chiasm.engines.embedded._kernels",
            ["src/chiasm/engines/embedded/_kernels.c"],
            extra_compile_args=["-O3", "-freciprocal-math", *SUMS_IN_ANY_ORDER],
            py_limited_api=True,
            optional=True,  # without compiler or Python headers the engine uses torch's operations instead
        )
    ],
)
