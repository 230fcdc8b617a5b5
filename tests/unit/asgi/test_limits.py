"""Deadline, disconnect, interruption, and the body's size."""

import asyncio
import time

import pytest

from chiasm.asgi.limits import ON_DISCONNECT, RequestLimits, read_body
from chiasm.errors import (
    BodyTimeoutError,
    DeadlineExceededError,
    RequestCancelledError,
    RequestTooLargeError,
    ShuttingDownError,
)


def receiver(*messages):
    queue = list(messages)

    async def receive():
        if not queue:
            await asyncio.Event().wait()
        return queue.pop(0)

    return receive


def piece(body, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


async def within(limits, *steps):
    """Take steps inside the limits, then wait to be interrupted."""
    async with limits:
        for step in steps:
            step()
        await asyncio.sleep(10)


async def test_the_deadline_interrupts():
    with pytest.raises(DeadlineExceededError, match=r"0\.02 s"):
        await within(RequestLimits(0.02))


async def test_a_body_that_drips_has_the_deadline_too_and_is_the_callers_fault():
    with pytest.raises(BodyTimeoutError, match=r"body did not arrive within 0\.02 s"):
        async with RequestLimits(0.02, awaits_body=True):
            await read_body(receiver(piece(b"{", more=True)), [], 100)
    limits = RequestLimits(0.02, awaits_body=True)
    with pytest.raises(DeadlineExceededError):  # once it is there, being late is the server's
        await within(limits, lambda: limits.watch(receiver(), {}))


async def test_a_shorter_deadline_counts_from_the_same_start():
    limits, left_s = RequestLimits(60), []
    with pytest.raises(DeadlineExceededError, match=r"0\.2 s"):
        await within(
            limits,
            lambda: time.sleep(0.15),
            lambda: limits.shorten(0.2),
            lambda: left_s.append(limits.remaining_s),
        )
    assert left_s[0] <= 0.05


async def test_a_client_that_leaves_interrupts():
    limits = RequestLimits(60)
    with pytest.raises(RequestCancelledError):
        await within(limits, lambda: limits.watch(receiver(piece(b""), GONE), {}))


async def test_interruption_from_outside():
    limits = RequestLimits(60)
    asyncio.get_running_loop().call_later(0.01, limits.interrupt, ShuttingDownError("stop"))
    with pytest.raises(ShuttingDownError, match="stop"):
        await within(limits)


async def test_the_first_reason_counts():
    limits = RequestLimits(60)
    with pytest.raises(ShuttingDownError):
        await within(
            limits,
            lambda: limits.interrupt(ShuttingDownError("stop")),
            lambda: limits.interrupt(RequestCancelledError("late")),
            lambda: limits.watch(receiver(GONE), {}),
        )


async def test_a_client_that_has_left_before_a_shorter_deadline_is_read_interrupts_at_once():
    limits = RequestLimits(60)
    with pytest.raises(RequestCancelledError):
        async with asyncio.timeout(10):
            await within(
                limits,
                lambda: limits.watch(receiver(), {"extensions": {ON_DISCONNECT: leave}}),
                lambda: limits.shorten(30),
            )


def leave(callback):
    """What a connection does whose client has left: it says so at once."""
    if callback is not None:
        callback()


async def test_reasons_after_the_deadline_change_nothing():
    limits = RequestLimits(0.01)

    async def slow_to_stop():
        async with limits:
            try:
                await asyncio.sleep(10)
            finally:
                limits.interrupt(ShuttingDownError("late"))
                limits.shorten(5)

    with pytest.raises(DeadlineExceededError):
        await slow_to_stop()


@pytest.mark.parametrize("kind", [KeyError, TimeoutError, asyncio.CancelledError])
async def test_other_errors_pass_through(kind):
    def fail():
        raise kind

    with pytest.raises(kind):
        await within(RequestLimits(60), fail)


async def test_nothing_happens_to_a_request_in_time():
    async with RequestLimits(60) as limits:
        limits.watch(receiver(), {})
        await asyncio.sleep(0)
        assert 59 < limits.remaining_s <= 60
    assert limits.remaining_s > 0


async def test_the_body_is_put_together():
    assert await read_body(receiver(piece(b"abc")), [], 3) == b"abc"
    assert await read_body(receiver(piece(b"ab", True), piece(b"", True), piece(b"c")), [], 3) == b"abc"
    assert await read_body(receiver({"type": "http.request"}), [], 3) == b""


@pytest.mark.parametrize(
    ("headers", "messages"),
    [
        ([(b"content-length", b"4")], []),
        ([(b"content-length", b"9" * 50)], []),
        ([], [piece(b"abcd")]),
        ([], [piece(b"ab", True), piece(b"cd", True)]),
        ([(b"content-length", b"1")], [piece(b"abcd")]),
    ],
)
async def test_too_large_bodies_are_refused_at_once(headers, messages):
    with pytest.raises(RequestTooLargeError, match="3 bytes"):
        await read_body(receiver(*messages), headers, 3)


async def test_leaving_while_the_body_is_read():
    with pytest.raises(RequestCancelledError):
        await read_body(receiver(piece(b"ab", True), GONE), [], 3)


async def test_a_request_that_ends_as_it_is_interrupted_ends_well_and_nothing_later_is_cancelled():
    async with RequestLimits(60) as limits:
        limits.interrupt(ShuttingDownError("stop"))  # by itself: it waits for nothing any more
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    limits.interrupt(ShuttingDownError("late"))
    limits.shorten(0.001)
    await asyncio.sleep(0.005)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_is_not_taken_for_the_deadline():
    limits, ended = RequestLimits(0.05), []

    async def serve():
        try:
            await within(limits)
        except BaseException as error:
            ended.append(type(error))
            raise

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [asyncio.CancelledError]


async def test_the_deadline_and_a_cancellation_at_once_are_a_cancellation():
    limits = RequestLimits(60)
    task = asyncio.create_task(within(limits))
    await asyncio.sleep(0)
    limits.expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
