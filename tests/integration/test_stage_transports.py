"""Embeddings, keys and values over each real transport: the whole worker's tokens, and nothing left behind."""

from pathlib import Path

import pytest

from chiasm.connectors.registry import make_transport
from chiasm.settings import TransferSettings
from tests.numeric.random_models import build
from tests.stages import ask, idle, pictures, staged


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


@pytest.mark.parametrize("connector", ["shm", "tcp", "file"])
async def test_split_stages_answer_over_it_as_the_whole_worker_does(directory, tmp_path, connector):
    settings = TransferSettings(connector=connector, directory=str(tmp_path), max_bytes=2**22)
    a, b = pictures(31, 2)
    requests = [ask("which?", a, b, places=(0, "or", 1, 0)), ask("which?", a), ask("hello " * 30)]
    async with staged(directory, "agg") as whole:
        expected = [(await whole.run(request)).tokens for request in requests]
    async with staged(directory, "e-p-d", make=lambda: make_transport(settings), transfer=settings) as stages:
        for _ in range(2):
            assert [(await stages.run(request)).tokens for request in requests] == expected
        assert stages.encode.stats().num_offered_tensors == 2
        assert stages.prefill.stats().num_offered_tensors == 2 * len(requests)
        for worker in stages.workers:
            await idle(worker)
