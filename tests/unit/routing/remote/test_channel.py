"""One connection: what comes in whatever pieces, what must not come, and when it may be used again."""

import asyncio

import pytest

from chiasm.routing.remote.channel import MAX_HEAD_BYTES, Channel

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """A transport that remembers."""

    def __init__(self):
        self.sent = b""
        self.is_closed = False
        self.is_reading = True

    def writelines(self, pieces):
        self.sent += b"".join(pieces)

    def is_closing(self):
        return self.is_closed

    def abort(self):
        self.is_closed = True

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


@pytest.fixture
async def lost():
    return []


@pytest.fixture
async def channel(lost):
    made = Channel(lost.append)
    made.connection_made(Wire())
    return made


async def all_of(channel):
    pieces = []
    while piece := await channel.read():
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_a_response_comes_in_any_pieces_and_the_connection_is_used_again(channel, size):
    for _ in range(2):
        assert channel.is_reusable
        channel.send(b"GET / HTTP/1.1\r\n\r\n", b"")
        assert not channel.is_reusable
        data = CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        for start in range(0, len(data), size):
            channel.data_received(data[start : start + size])
        assert await channel.wait_status() == 200
        assert not channel.is_reusable, "nobody has taken the body yet"
        assert await all_of(channel) == b"abcde"
        assert channel.is_reusable


async def test_a_reader_waits_for_what_is_to_come(channel):
    channel.send(b"", b"")
    reading = asyncio.create_task(all_of(channel))
    await asyncio.sleep(0)
    channel.data_received(HEAD)
    channel.data_received(b"abc")
    await asyncio.sleep(0)
    assert not reading.done()
    channel.data_received(b"de")
    assert await reading == b"abcde"


async def test_what_came_before_the_loss_is_still_read(channel, lost):
    channel.send(b"", b"")
    channel.data_received(HEAD + b"abc")
    channel.connection_lost(None)
    assert lost == [channel]
    assert await channel.read() == b"abc"
    with pytest.raises(ConnectionError):
        await channel.read()
    assert not channel.is_reusable


async def test_time_that_is_up_ends_the_wait_and_the_connection(channel):
    channel.send(b"", b"")
    waiting = asyncio.create_task(channel.wait_status())
    await asyncio.sleep(0)
    channel.expire()
    with pytest.raises(TimeoutError):
        await waiting
    channel.connection_lost(None)
    with pytest.raises(TimeoutError):
        await channel.read()
    assert channel._transport.is_closed


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES,
    ],
)
async def test_what_is_no_response_ends_the_connection(channel, data):
    channel.send(b"", b"")
    channel.data_received(data)
    channel.connection_lost(None)
    with pytest.raises(ConnectionError):
        await all_of(channel)


@pytest.mark.parametrize("data", [HEAD + b"abcde", b"noise"])
async def test_a_worker_that_speaks_unasked_is_left(channel, data):
    channel.data_received(data)
    assert channel._transport.is_closed
    assert not channel.is_reusable


async def test_more_than_one_response_is_neither_mixed_nor_taken_for_the_next_calls(channel):
    channel.send(b"", b"")
    channel.data_received(HEAD + b"abcde" + HEAD + b"fghij")
    assert await all_of(channel) == b"abcde"
    assert not channel.is_reusable


async def test_an_interim_response_is_not_the_response(channel):
    channel.send(b"", b"")
    channel.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    channel.data_received(HEAD + b"abcde")
    assert await channel.wait_status() == 200
    assert await all_of(channel) == b"abcde"
    assert channel.is_reusable


async def test_a_connection_that_the_worker_ends_is_not_used_again(channel):
    channel.send(b"", b"")
    channel.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\na")
    assert await all_of(channel) == b"a"
    assert not channel.is_reusable


async def test_reading_pauses_while_nobody_takes_what_has_come(channel):
    channel.send(b"", b"")
    channel.data_received(CHUNKED)
    piece = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
    for _ in range(5):
        channel.data_received(piece)
    assert not channel._transport.is_reading
    assert len(await channel.read()) == 5 * 2**16
    assert channel._transport.is_reading
    channel.data_received(piece)
    assert channel._transport.is_reading
