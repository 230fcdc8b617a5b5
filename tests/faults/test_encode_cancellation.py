"""An encode call that is cancelled in the very moment in which its embedding arrives."""

import asyncio
from pathlib import Path

import pytest

from chiasm.protocol.worker import EncodeRequest
from tests.numeric.random_models import build
from tests.stages import idle, pictures, staged


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


async def test_an_embedding_that_comes_with_the_cancellation_is_given_back(directory, monkeypatch):
    async with staged(directory, "e-pd") as stages:
        source = stages.encode._embeddings
        settle = source._settle

        def settle_and_cancel(result, outcome):
            settle(result, outcome)
            for flight in source._flights._flights.values():
                flight.task.cancel()

        monkeypatch.setattr(source, "_settle", settle_and_cancel)
        asked = EncodeRequest(request_id="e", items=pictures(21, 1))
        with pytest.raises(asyncio.CancelledError):
            await stages.encode.encode(asked)
        monkeypatch.undo()
        await idle(stages.encode)
        assert len((await stages.encode.encode(asked)).handles) == 1
        await idle(stages.encode)
