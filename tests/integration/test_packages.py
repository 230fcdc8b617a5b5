"""What people install: the source distribution, and wheels built from it with and without a C compiler.

Nothing is downloaded: the build backend is called as pip calls it, in this environment.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from chiasm.media.kernels.registry import kernels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
NATIVE = {"chiasm/media/kernels/_native.abi3.so", "chiasm/engines/embedded/decoder/_native.abi3.so"}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"
LIMIT_S = 500

USE = """
import hashlib, io, sys, tempfile
from pathlib import Path
import numpy as np
from PIL import Image
import chiasm
from chiasm.media import MediaSettings, decode_pixels
from chiasm.media.kernels.plain import PlainKernels
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.medium import Announced, prepare_medium
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer

assert Path(chiasm.__file__).is_relative_to(sys.argv[1]), chiasm.__file__
rng, table = np.random.default_rng(0), np.linspace(-2, 2, 768, dtype=np.float32).reshape(3, 256)


def made(kernels):
    sizes = ((61, 47, (28, 56)), (640, 480, (140, 84)), (20, 300, (56, 28)), (90, 90, (196, 140)))
    for (width, height, to), resample in ((size, resample) for size in sizes for resample in (1, 2, 3)):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        patches = kernels.patches(pixels, to, resample, 14, 2)
        yield kernels.resize(pixels, to, resample)
        yield patches
        yield kernels.look_up(patches, table, 2)
        yield from (kernels.turn(pixels, orientation) for orientation in range(1, 9))


def encoded(kind, **options):
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (300, 400, 3), dtype=np.uint8)).save(out, kind, **options)
    return out.getvalue()


def prepared():
    settings = MediaSettings()
    with tempfile.TemporaryDirectory() as folder:
        preparer = Qwen2VLPreparer(Path(folder), {"max_pixels": 64 * 28 * 28}, {})
    for data in (encoded("PNG"), encoded("JPEG", quality=90), encoded("WEBP", lossless=True)):
        yield decode_pixels(data, settings)
        yield prepare_medium(data, Announced(400, 300), preparer, settings).prepared.pixel_values()


def digest(arrays):
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(str((array.shape, array.dtype)).encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


ours = digest(made(kernels()))
rng = np.random.default_rng(0)
assert digest(made(PlainKernels())) == ours, "the fallback gives other bits"
rng = np.random.default_rng(1)
print(kernels().name, ours, digest(prepared()))
"""


def run(*command, **options):
    done = subprocess.run(
        [sys.executable, *map(str, command)], check=False, capture_output=True, text=True, timeout=LIMIT_S, **options
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The source distribution, built from what the repository holds."""
    folder = tmp_path_factory.mktemp("source")
    names = subprocess.run(
        ["git", "ls-files", "-z", "src", "pyproject.toml", "setup.py", "README.md", "LICENSE"],
        cwd=ROOT, check=True, capture_output=True, timeout=60,
    ).stdout.decode().split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    run("-c", BUILD.format(what="sdist"), folder / "dist", cwd=folder)
    [archive] = (folder / "dist").iterdir()
    return archive


def wheel_of(source, folder, **environment):
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    [tree] = folder.iterdir()
    run("-c", BUILD.format(what="wheel"), folder / "dist", cwd=tree, env=os.environ | environment)
    [wheel] = (folder / "dist").iterdir()
    return wheel


def use(wheel, folder):
    """Install a wheel somewhere and prepare pictures with it: the kind of its kernels, and a name for their bits."""
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", folder, wheel)
    kind, *bits = run("-P", "-c", USE, folder, env=os.environ | {"PYTHONPATH": str(folder)}).split()
    return kind, bits


def shared_objects(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.endswith(".so")}


@pytest.fixture(scope="module")
def without_compiler(source, tmp_path_factory):
    wheel = wheel_of(source, tmp_path_factory.mktemp("plain"), CC="/nowhere/cc")
    assert shared_objects(wheel) == set()
    return use(wheel, tmp_path_factory.mktemp("plain-installed"))


def test_without_a_compiler_the_package_builds_and_prepares(without_compiler):
    kind, bits = without_compiler
    assert kind == "plain"
    assert len(bits) == 2


@pytest.mark.skipif(kernels().name != "native", reason="this machine has no C compiler or no headers of Python")
def test_the_source_distribution_builds_a_wheel_whose_kernels_give_the_fallbacks_bits(
    source, without_compiler, tmp_path_factory
):
    wheel = wheel_of(source, tmp_path_factory.mktemp("native"))
    assert shared_objects(wheel) == NATIVE
    kind, bits = use(wheel, tmp_path_factory.mktemp("native-installed"))
    assert kind == "native"
    assert bits == without_compiler[1]


def test_the_source_distribution_holds_everything_that_is_compiled_or_served(source):
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for pattern in ("*.c", "*.h", "*.inc"):
        wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob(pattern)}
        assert wanted - names - _new(wanted) == set()
    assert {"src/chiasm/py.typed", "src/chiasm/reporting/style.css", "LICENSE", "README.md"} <= names


def _new(names):
    """Files that somebody is about to add."""
    known = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    return names - set(known.stdout.split())
