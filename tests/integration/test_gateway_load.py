"""Two hundred requests of all kinds at once: each ends once, and all counters agree."""

import asyncio
import json
from collections import Counter

from tests.fakes import by_prompt
from tests.integration.gateway_server import connected, post_bytes, read_response, running

WAYS = (
    "whole",
    "stream",
    "picture",
    "malformed",
    "refused",
    "fails",
    "fails_late",
    "leaves",
    "leaves_late",
    "broken_picture",
)


def body_of(way):
    def ask(text, *urls, **fields):
        images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return {"messages": [{"role": "user", "content": [*images, {"type": "text", "text": text}]}], **fields}

    bodies = {
        "whole": ask("slow b c"),
        "stream": ask("slow b c", stream=True),
        "picture": ask("slow b c", "x:1", "x:2"),
        "refused": ask("x", tools=[{}]),
        "fails": ask("fail 0"),
        "fails_late": ask("fail 2 x", stream=True),
        "leaves": ask("hang 0"),
        "leaves_late": ask("hang 2 x", stream=True),
        "broken_picture": ask("x", "bad:1"),
    }
    return b'{"messages": [' if way == "malformed" else json.dumps(bodies[way]).encode()


async def client(server, way):
    async with connected(server) as (reader, writer):
        writer.write(post_bytes(body_of(way)))
        if way == "leaves":
            await asyncio.sleep(0.3)
            return "left"
        if way == "leaves_late":
            await asyncio.wait_for(reader.readuntil(b" 2"), 60)
            return "left"
        status, _, body = await read_response(reader)
        if status == 200 and b"error" in body:
            return "error event"
        return status


async def test_every_request_ends_once_and_the_counters_add_up():
    async with running(by_prompt(), max_running_requests=16, max_queued_requests=200) as server:
        ways = [WAYS[index % len(WAYS)] for index in range(200)]
        seen = Counter(zip(ways, await asyncio.gather(*(client(server, way) for way in ways)), strict=True))
        await server.until_ended(200, timeout_s=60)
        await server.until_idle()
        assert seen == {
            ("whole", 200): 20,
            ("stream", 200): 20,
            ("picture", 200): 20,
            ("malformed", 400): 20,
            ("refused", 400): 20,
            ("fails", 500): 20,
            ("fails_late", "error event"): 20,
            ("leaves", "left"): 20,
            ("leaves_late", "left"): 20,
            ("broken_picture", 400): 20,
        }
        assert server.outcomes() == {
            "finished": 60,
            "invalid_request": 20,
            "unsupported_feature": 20,
            "internal_error": 40,
            "cancelled": 40,
            "media_undecodable": 20,
        }
        assert server.num_received() == sum(server.outcomes().values()) == 200
        worker = server.worker
        assert worker.num_finished == 60
        assert worker.num_finished + worker.num_failed + worker.num_cancelled == len(worker.requests)
        receipts = server.gateway.receipts.latest(1000)
        assert Counter(receipt.outcome for receipt in receipts) == server.outcomes()
        assert len({receipt.request_id for receipt in receipts}) == 200


async def test_a_full_server_refuses_quickly_and_serves_the_rest():
    async with running(by_prompt(), max_running_requests=4, max_queued_requests=8) as server:
        results = Counter(await asyncio.gather(*(client(server, "whole") for _ in range(100))))
        await server.until_ended(100)
        assert set(results) == {200, 429}
        assert results[200] >= 12
        assert server.outcomes() == {"finished": results[200], "overloaded": results[429]}
        assert server.worker.num_finished == results[200]
