"""A caller's priority orders what waits for a slot of the engine."""

import asyncio

from tests.conditions import until
from tests.numeric.random_models import build
from tests.stages import ask, collect, slow_forward, start


async def test_the_lower_priority_goes_first(tmp_path, monkeypatch):
    worker = start(build("qwen3", tmp_path / "model"), max_running=1)
    try:
        slow_forward(worker, monkeypatch, 0.01)
        ended = []

        async def run(name, **sampling):
            await collect(worker, ask(name, **sampling))
            ended.append(name)

        first = asyncio.ensure_future(run("first", max_tokens=64))
        await until(lambda: worker.stats().num_running == 1)
        later = [asyncio.ensure_future(run(name, priority=priority)) for name, priority in (("late", 5), ("soon", -5))]
        await until(lambda: worker.stats().num_waiting == 2)
        await asyncio.gather(first, *later)
        assert ended == ["first", "soon", "late"]
    finally:
        await worker.aclose()
