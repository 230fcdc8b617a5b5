"""A picture request leaves a trace that is its receipt; workers are told whose trace their call belongs to."""

import asyncio

import aiohttp
import pytest

from chiasm.launch.local import background_server
from chiasm.observability.trace import outgoing
from chiasm.routing.remote.connection import WorkerConnection
from chiasm.settings import resolve
from tests.e2e.served import ask, picture
from tests.fakes import say
from tests.integration.gateway_server import running
from tests.unit.observability.test_trace_export import Collector, until
from tests.unit.observability.test_trace_export import running as collecting

_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_HEADER = f"00-{_TRACE}-{_PARENT}-01"
_CHAT = "/v1/chat/completions"


def spans_of(collector):
    return [span for body in collector.bodies for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]


def length_s(span):
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


async def until_sent(session):
    """Wait until the exporter has heard that its trace arrived, which is after it has."""
    async with asyncio.timeout(30):
        while True:
            async with session.get("/metrics") as response:
                if 'chiasm_traces_total{outcome="sent"} 1.0' in await response.text():
                    return
            await asyncio.sleep(0.01)


async def test_a_picture_request_is_a_tree_with_the_receipts_durations():
    collector = Collector()
    async with collecting(collector) as address:
        overrides = ["gateway.port=0", f"observability.otlp_endpoint={address}"]
        server = background_server(resolve(environment={}, overrides=overrides).settings, lambda what, share: None)
        made = await asyncio.to_thread(server.__enter__)
        try:
            body = {"messages": ask(picture("red"), "What is it?"), "max_tokens": 8, "chiasm": {"receipt": True}}
            async with aiohttp.ClientSession(made.address) as session:
                async with session.post(_CHAT, json=body, headers={"traceparent": _HEADER}) as response:
                    receipt = (await response.json())["chiasm"]["receipt"]
                await until(lambda: collector.num_roots)
                await until_sent(session)
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)
    root, *children = spans_of(collector)
    assert (root["traceId"], root["parentSpanId"], root["name"]) == (_TRACE, _PARENT, "chat")
    assert length_s(root) == pytest.approx(receipt["e2e_s"], abs=1e-6)
    wanted = [(span["stage"], span["end_s"] - span["start_s"]) for span in receipt["spans"]]
    found = [(span["name"], length_s(span)) for span in children]
    assert {"encode", "prefill"} <= {name for name, _ in found}
    assert found == [(name, pytest.approx(s, abs=1e-6)) for name, s in [*wanted, ("decode", receipt["decode_s"])]]
    charged = {
        one["key"]: one["value"]["doubleValue"]
        for one in root["attributes"]
        if one["key"].startswith("chiasm.charged.")
    }
    assert sum(charged.values()) + receipt["unaccounted_s"] == pytest.approx(receipt["ttft_s"], abs=1e-6)
    text = str(collector.bodies)
    assert "What is it?" not in text
    assert "base64" not in text


@pytest.mark.parametrize("sent", [_HEADER, "nonsense", None])
async def test_without_an_exporter_a_callers_header_goes_on_as_it_is(sent):
    seen = []

    async def script(request):
        seen.append(outgoing.get())

        async for event in say()(request):
            yield event

    async with running(script) as server, aiohttp.ClientSession(server.address) as session:
        headers = {"traceparent": sent} if sent else {}
        for _ in range(2):  # on one connection: the second must not have what the first brought
            async with session.post(_CHAT, json={"messages": ask("Hello")}, headers=headers) as response:
                assert response.status == 200
            headers = {}
    assert seen == [_HEADER.encode() if sent == _HEADER else b"", b""]


async def test_calls_to_workers_carry_the_header():
    heads = []

    async def answer(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    connection = WorkerConnection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "token")
    await connection.get("/stats", 5.0)
    outgoing.set(_HEADER.encode())
    await asyncio.create_task(connection.get("/stats", 5.0))  # as the router's tasks do
    await connection.aclose()
    server.close()
    assert b"traceparent" not in heads[0]
    assert f"\r\ntraceparent: {_HEADER}\r\n".encode() in heads[1]
