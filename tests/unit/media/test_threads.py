"""Calls on threads: what they return and raise, cancelling, closing, and what is kept."""

import asyncio
import gc
import threading
import weakref

import pytest

from chiasm.media.threads import Threads
from tests.conditions import until


@pytest.fixture
def threads():
    made = Threads(2, "test")
    yield made
    made.close()


def fail():
    raise KeyError("no")


async def test_a_call_gives_what_it_returns_or_raises(threads):
    assert await threads.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError, match="no"):
        await threads.run(fail)
    assert await threads.run(lambda: threading.current_thread().name) in ("test_0", "test_1")


async def test_calls_run_side_by_side(threads):
    barrier = threading.Barrier(2, timeout=30)
    await asyncio.gather(threads.run(barrier.wait), threads.run(barrier.wait))


async def test_a_cancelled_call_that_has_not_begun_is_spared(threads):
    release, done = threading.Event(), []
    busy = [asyncio.create_task(threads.run(release.wait, 30)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(threads.run(done.append, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    release.set()
    await asyncio.gather(*busy)
    await threads.run(done.append, 2)
    assert done == [2]


async def test_closing_cancels_what_has_not_begun_and_ends_the_threads(threads):
    release = threading.Event()
    busy = [asyncio.create_task(threads.run(release.wait, 30)) for _ in range(2)]
    waiting = asyncio.create_task(threads.run(print))
    await asyncio.sleep(0)
    await until(lambda: threads._jobs.qsize() == 1)
    threads.close()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    release.set()
    assert await asyncio.gather(*busy) == [True, True]
    await until(lambda: not any(thread.is_alive() for thread in threads._threads))


async def test_what_a_call_was_given_is_not_kept(threads):
    class Picture:
        pass

    picture = Picture()
    gone = weakref.ref(picture)
    await threads.run(id, picture)
    del picture
    await until(lambda: gc.collect() >= 0 and gone() is None)


def test_a_loop_that_has_ended_does_not_end_the_threads(threads):
    release = threading.Event()

    async def leave():
        task = asyncio.create_task(threads.run(release.wait, 30))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    release.set()
    assert asyncio.run(threads.run(divmod, 7, 2)) == (3, 1)
