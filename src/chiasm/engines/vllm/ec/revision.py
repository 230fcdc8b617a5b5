"""A short name for everything besides the medium that shapes an embedding."""

import hashlib
from pathlib import Path

from chiasm.engines.embedded.revision import model_revision

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def embedding_revision(model: Path, revision: str, dtype: str) -> str:
    """Hash a model directory's weights, configuration and processor; of a name on a hub, the name and its revision."""
    digest = hashlib.sha256()
    if not model.is_dir():
        digest.update(f"{model}@{revision}:{dtype}".encode())
        return digest.hexdigest()[:16]
    digest.update(model_revision(model, dtype).encode())
    for path in (model / name for name in _PROCESSOR_FILES):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
