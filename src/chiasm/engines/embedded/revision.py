"""A short name for a model's weights that changes when they change, without reading all of them."""

import hashlib
from pathlib import Path

_EDGE_BYTES = 1 << 20
_NUM_SAMPLES = 64
_SAMPLE_BYTES = 4096


def model_revision(directory: Path, dtype: str) -> str:
    """Hash configuration, sizes, the files' edges and evenly spread samples of the weights, and the compute type.

    The edges hold safetensors' headers with every tensor's name, type and place.
    """
    digest = hashlib.sha256(dtype.encode())
    for path in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
        digest.update(path.name.encode())
        _add_file(digest, path)
    return digest.hexdigest()[:16]


def _add_file(digest: "hashlib._Hash", path: Path) -> None:
    size_bytes = path.stat().st_size
    digest.update(size_bytes.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(_EDGE_BYTES))
        for number in range(_NUM_SAMPLES):
            file.seek(size_bytes * number // _NUM_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, size_bytes - _EDGE_BYTES))
        digest.update(file.read(_EDGE_BYTES))
