import asyncio
import threading
from collections import deque

import pytest

from chiasm.errors import EngineStepError
from chiasm.protocol.generation import ChoiceFinished, TokenEvent
from chiasm.workers.mailbox import Mailbox


def token(text: str, choice: int = 0) -> TokenEvent:
    return TokenEvent(choice, text, (1,))


def from_thread(action) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


async def test_events_of_another_thread_arrive_in_order():
    box = Mailbox(1, stream=True)
    threading.Thread(target=lambda: [box.push([token(str(i))]) for i in range(1000)]).start()
    seen: list[str] = []
    while len(seen) < 1000:
        async with asyncio.timeout(5):
            seen += [event.text for event in await box.get()]
    assert seen == [str(i) for i in range(1000)]


async def test_without_streaming_the_reader_wakes_only_at_the_end():
    box = Mailbox(2, stream=False)
    from_thread(lambda: box.push([token("a")]))
    from_thread(lambda: box.push([ChoiceFinished(0, "stop")]))
    reader = asyncio.create_task(box.get())
    # events that are there are taken at once, so drain them before the wait under test
    assert len(await reader) == 2
    from_thread(lambda: box.push([token("b", 1)]))
    await asyncio.sleep(0.01)
    assert box.has_events
    assert not box.is_finished
    from_thread(lambda: box.push([ChoiceFinished(1, "length")]))
    assert len(await box.get()) == 2
    assert box.is_finished


async def test_an_error_comes_after_the_events_before_it():
    box = Mailbox(1, stream=True)
    from_thread(lambda: (box.push([token("a")]), box.fail(EngineStepError("no"))))
    assert [event.text for event in await box.get()] == ["a"]
    with pytest.raises(EngineStepError):
        await box.get()


class TakenAtOnce(deque):
    """A reader on the other thread has taken what is appended before the next line runs."""

    def extend(self, events) -> None:
        super().extend(events)
        self.clear()


async def test_a_reader_that_was_faster_than_the_count_of_ends_does_not_wait_for_ever():
    box = Mailbox(1, stream=True)
    box._events = TakenAtOnce()
    reader = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    from_thread(lambda: box.push([token("a"), ChoiceFinished(0, "stop")]))
    async with asyncio.timeout(10):
        assert await reader == []
    assert box.is_finished
    assert not box.has_events
