"""Comparing scores of pictures prepared both ways: the model is given back, however it ends."""

from types import SimpleNamespace

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.parity_fast import _computed


class Scorer:
    """Gives no embeddings."""

    pooling = SimpleNamespace(tasks=("score",))
    is_closed = False

    async def aclose(self):
        self.is_closed = True


async def test_a_model_that_needs_a_text_is_closed_when_there_is_none():
    worker = Scorer()
    with pytest.raises(InvalidSettingError, match="scores pictures for a text"):
        await _computed(worker, [], "")
    assert worker.is_closed
