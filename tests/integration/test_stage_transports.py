"""Embeddings, keys and values over each real transport: the whole worker's tokens, and nothing left behind."""

from math import prod
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.connectors.base import ITEM_SIZE_BYTES
from chiasm.connectors.registry import make_transport
from chiasm.settings import TransferSettings
from tests.conditions import until
from tests.numeric.random_models import build
from tests.stages import ask, collect, idle, pictures, staged


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
        await until(lambda: stages.prefill.stats().num_offered_tensors == 0)
        for worker in stages.workers:
            await idle(worker)


@pytest.mark.parametrize("connector", ["shm", "tcp", "file"])
async def test_many_long_prompts_pass_through_room_for_a_few(directory, tmp_path, connector):
    settings = TransferSettings(connector=connector, directory=str(tmp_path), max_bytes=2**20, ttl_s=3600)
    prompts = [ask(f"{number} hello " * 40, max_tokens=2) for number in range(24)]
    async with staged(directory, "p-d", make=lambda: make_transport(settings), transfer=settings) as stages:
        handles_bytes = 0
        for prompt in prompts:
            kv = await stages.prefilled(prompt)
            handles_bytes += prod(kv.metadata.shape) * ITEM_SIZE_BYTES[kv.metadata.dtype]
            await collect(stages.decode, replace(prompt, kv=kv))
        assert handles_bytes > 4 * settings.max_bytes
        await until(lambda: stages.prefill.stats().num_offered_tensors == 0)
        for worker in stages.workers:
            await idle(worker)
