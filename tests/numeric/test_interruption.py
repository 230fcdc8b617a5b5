"""Who waits for whom in the engine's thread: texts, and requests with few pictures, wait for little."""

import asyncio
import random
import threading
import time

import pytest

from chiasm.engines.embedded.decoder.native_decoder import library
from chiasm.engines.embedded.tower import native_tower
from chiasm.protocol.worker import EncodeRequest
from tests.conditions import until
from tests.numeric.random_models import build
from tests.numeric.test_engine import Conversation, answer, media_item, picture, start

PATIENCE_S = 60.0
SHOWN = Conversation([0, "what is it?"], [picture(random.Random(3))])
TEXT = Conversation(["hello"])


@pytest.mark.skipif(library is None, reason="only the tower in C can stop")
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
async def test_a_text_does_not_wait_for_the_picture_being_encoded(family, tmp_path, monkeypatch):
    monkeypatch.setattr(native_tower, "PIECE_PRODUCTS", 0.0)  # the picture is small
    worker = start(build(family, tmp_path / family))
    try:
        alone = [await answer(worker, one.request(f"alone {n}")) for n, one in enumerate((SHOWN, TEXT))]
    finally:
        await worker.aclose()

    worker = start(build(family, tmp_path / family))
    engine, text, seen = worker._engine, [], []
    loop, give_way = asyncio.get_running_loop(), engine.loop.give_way

    def come_between():
        if not text:
            request = answer(worker, TEXT.request("text"))
            text.append(asyncio.run_coroutine_threadsafe(request, loop))
            deadline_s = time.monotonic() + PATIENCE_S
            while not engine.loop._commands and time.monotonic() < deadline_s:
                time.sleep(0.001)
        give_way()
        seen.append((engine.core.totals["prefill_tokens"], engine.encoder.num_encoded))

    engine.loop.give_way = come_between
    try:
        shown = await answer(worker, SHOWN.request("shown"))
        beside = await asyncio.wait_for(asyncio.wrap_future(text[0]), PATIENCE_S)
    finally:
        await worker.aclose()
    num_prefilled, num_encoded = seen[0]
    assert num_prefilled > 0
    assert num_encoded == 0
    assert [shown[0], beside[0]] == [tokens for tokens, _ in alone]


async def test_one_picture_does_not_wait_for_all_of_another_request(tmp_path):
    worker = start(build("qwen3_vl", tmp_path / "model"), max_encode_embeddings=1)
    loop, rng, complete, free = worker._engine.loop, random.Random(5), [], threading.Event()

    async def encode(name, num_pictures):
        items = tuple(media_item(picture(rng)) for _ in range(num_pictures))
        await worker.encode(EncodeRequest(request_id=name, items=items))
        complete.append(name)

    try:
        loop._post(lambda: free.wait(PATIENCE_S), lambda error: None)
        tasks = [asyncio.create_task(encode(name, count)) for name, count in (("four", 4), ("one", 1))]
        await until(lambda: len(loop._commands) == 5)
        free.set()
        await asyncio.gather(*tasks)
    finally:
        free.set()
        await worker.aclose()
    assert complete == ["one", "four"]
