"""Events over ZeroMQ from a publisher that speaks as vLLM's does."""

import asyncio
from contextlib import aclosing, suppress

import msgspec
import pytest
import zmq
import zmq.asyncio

from chiasm.errors import EngineError
from chiasm.routing.vllm.cache_events import EventsAddress, Follower, ZmqSource
from tests.conditions import until


class Publisher:
    """Sends batches by number; answers for those that it keeps."""

    def __init__(self, folder, max_waiting=1000):
        self.address = EventsAddress(f"ipc://{folder}/p", f"ipc://{folder}/r")
        self.kept = {}
        self.num_asked = 0
        self._context = zmq.asyncio.Context()
        self._out = self._context.socket(zmq.XPUB)
        self._out.setsockopt(zmq.XPUB_VERBOSE, 1)  # who dials again is told of again
        self._out.setsockopt(zmq.SNDHWM, max_waiting)
        self._out.bind(self.address.publishes)
        self._asked = self._context.socket(zmq.ROUTER)
        self._asked.bind(self.address.replays)
        self._answering = asyncio.create_task(self._answer())

    async def subscribed(self):
        """Wait until somebody listens."""
        async with asyncio.timeout(10):
            while (await self._out.recv()) != b"\x01":
                pass

    async def send(self, number, *events, is_lost=False):
        payload = msgspec.msgpack.encode([float(number), list(events), 0])
        self.kept[number] = payload
        if not is_lost:
            await self._out.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def _answer(self):
        while True:
            client, _, first = await self._asked.recv_multipart()
            self.num_asked += 1
            for number, payload in self.kept.items():
                if number >= int.from_bytes(first, "big"):
                    await self._asked.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
            await self._asked.send_multipart([client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])

    async def aclose(self):
        self._answering.cancel()
        await asyncio.wait([self._answering])
        self._context.destroy(linger=0)


@pytest.fixture
async def publisher(tmp_path):
    made = Publisher(tmp_path)
    yield made
    await made.aclose()


CLEARED = {"type": "AllBlocksCleared"}


async def test_batches_come_in_order_and_those_that_were_lost_are_asked_for(publisher):
    follower, lost = Follower(), []
    follower.start(ZmqSource(publisher.address), lost.append)
    await publisher.subscribed()
    await publisher.send(0)
    await publisher.send(1, CLEARED, is_lost=True)
    await publisher.send(2, is_lost=True)
    await publisher.send(3, CLEARED)
    await until(lambda: len(lost) == 2, 10)
    assert lost == [None, None]
    totals = follower.totals
    assert (totals["kv_event_batches"], totals["kv_event_batches_replayed"]) == (4, 2)
    assert totals["kv_event_batches_missed"] == 0
    await follower.aclose()


MANY = 6000
HASHES = [bytes([number]) * 32 for number in range(16)]


async def test_a_gap_of_thousands_is_filled_though_a_server_drops_what_its_socket_has_no_room_for(publisher):
    """As vLLM does, which sends all at once; the mark at the end is dropped as well."""
    follower, lost = Follower(), []
    follower.start(ZmqSource(publisher.address), lost.append)
    await publisher.subscribed()
    await publisher.send(0)
    for number in range(1, MANY):
        await publisher.send(number, {"type": "BlockRemoved", "block_hashes": HASHES}, is_lost=True)
    await publisher.send(MANY, CLEARED)
    await until(lambda: lost, 60)
    totals = follower.totals
    assert (totals["kv_event_batches"], totals["kv_event_batches_replayed"]) == (MANY + 1, MANY - 1)
    assert totals["kv_event_batches_missed"] == 0
    assert publisher.num_asked > 1, "nothing was dropped: the test shows nothing"
    await follower.aclose()


async def test_a_publisher_that_keeps_nothing_leaves_a_gap(publisher):
    follower, lost = Follower(), []
    follower.start(ZmqSource(publisher.address), lost.append)
    await publisher.subscribed()
    await publisher.send(0)
    await publisher.send(1, CLEARED, is_lost=True)
    del publisher.kept[1]
    await publisher.send(2)
    await until(lambda: follower.totals["kv_event_batches_missed"] == 1, 10)
    assert not lost
    await follower.aclose()


async def test_what_waits_here_is_bounded_in_bytes_and_the_rest_stays_with_the_server(tmp_path):
    """Or is lost there, which the numbers show."""
    publisher = Publisher(tmp_path, max_waiting=1)
    source = ZmqSource(publisher.address)
    await publisher.subscribed()
    for number in range(200):
        await publisher.send(number, {"type": "?", "filling": "x" * 2**20})
    found = [number async for number in _taken(source)]
    assert found == sorted(found)
    assert 1 <= len(found) <= 40
    source.close()
    await publisher.aclose()


async def _taken(source):
    """Numbers of what waits, until nothing comes any more."""
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(1):
                number, _ = await source.received()
            yield number


class Line:
    """Carries bytes between a subscriber and a publisher, until it falls silent without an end."""

    def __init__(self, publisher):
        self._path = publisher.address.publishes.removeprefix("ipc://")
        self.num_calls = 0
        self.is_silent = False

    async def __aenter__(self):
        self._lives = []
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = EventsAddress(f"tcp://127.0.0.1:{port}")
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    def _begin(self, reader, writer):
        self._lives.append(asyncio.create_task(self._live(reader, writer)))

    async def _live(self, reader, writer):
        there, to = await asyncio.open_unix_connection(self._path)
        self.num_calls += 1
        number, self.is_silent = self.num_calls, False
        try:
            await asyncio.gather(self._carry(number, reader, to), self._carry(number, there, writer))
        finally:
            for one in (to, writer):
                one.close()
                await asyncio.gather(one.wait_closed(), return_exceptions=True)

    async def _carry(self, number, reader, writer):
        while data := await reader.read(65536):
            if not self.is_silent and number == self.num_calls:
                writer.write(data)
        raise ConnectionError("the other way ends with this one")


async def test_a_publisher_that_falls_silent_without_an_end_is_dialled_again(publisher, monkeypatch):
    monkeypatch.setattr("chiasm.routing.vllm.cache_events.source._HEARTBEAT_S", 0.1)
    follower, lost = Follower(), []
    async with Line(publisher) as line:
        follower.start(ZmqSource(line.address), lost.append)
        await publisher.subscribed()
        await publisher.send(0)
        await until(lambda: follower.totals["kv_event_batches"] == 1, 10)
        line.is_silent = True
        await until(lambda: line.num_calls == 2, 10)
        await publisher.subscribed()
        await publisher.send(1, CLEARED)
        await until(lambda: lost == [None], 10)
        await follower.aclose()


async def test_who_answers_nothing_is_not_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("chiasm.routing.vllm.cache_events.source._REPLAY_TIMEOUT_S", 0.1)
    source = ZmqSource(EventsAddress(f"ipc://{tmp_path}/p", f"ipc://{tmp_path}/r"))
    with pytest.raises(EngineError, match="does not answer"):
        await _replay_of(source, 9)
    source.close()
    mute = ZmqSource(EventsAddress(f"ipc://{tmp_path}/p"))
    assert await asyncio.wait_for(_replay_of(mute, 9), 5) == []
    mute.close()


async def _replay_of(source, until):
    async with aclosing(source.replayed(0, until)) as batches:
        return [number async for number, _ in batches]
