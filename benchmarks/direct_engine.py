"""The worker called in its own process: what the gateway's HTTP is compared with. Answers lines like a peer."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pybase64

from benchmarks import models, workloads
from benchmarks.streams import time_streams
from chiasm.gateway.openai.chat import ChatDialect
from chiasm.media.ingest import MediaIngest
from chiasm.observability.receipt import StageClock
from chiasm.protocol.generation import GenerateRequest, TokenEvent
from chiasm.settings import resolve
from chiasm.workers.local import LocalWorker


def chat_body(seed: str, num_tokens: int, *, has_picture: bool) -> bytes:
    """An API request; the same for the direct call and for HTTP."""
    content: list[dict[str, Any]] = [{"type": "text", "text": f"{workloads.QUESTION} ({seed})"}]
    if has_picture:
        url = "data:image/png;base64," + pybase64.b64encode(workloads.picture(seed)).decode()
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    return json.dumps(body).encode()


class Direct:
    """Owns a worker."""

    def __init__(self, threads: int) -> None:
        settings = resolve(values={"engine.threads": threads, "engine.prefix_cache_bytes": 0}).settings
        self.worker = LocalWorker.start(
            models.TINY, "tiny", settings.engine, settings.media, lambda _what, _share: None
        )
        self.ingest = MediaIngest(settings.media, self.worker.preparer)

    async def run(self, seed: str, count: int, concurrency: int, num_tokens: int, *, has_picture: bool) -> dict:
        bodies = [chat_body(f"{seed} {n}", num_tokens, has_picture=has_picture) for n in range(count)]

        async def stream(number: int) -> AsyncIterator[int]:
            plan = ChatDialect().plan(bodies[number])
            items = await self.ingest.collect(plan.references, 60.0, StageClock())
            request = GenerateRequest(
                request_id=f"{seed}{number}", prompt=plan.prompts[0], items=tuple(items), sampling=plan.sampling
            )
            async for event in self.worker.generate(request):
                if isinstance(event, TokenEvent):
                    yield len(event.token_ids)

        return await time_streams(stream, count, concurrency)


async def main() -> None:
    direct = Direct(int(sys.argv[1]))
    loop = asyncio.get_running_loop()
    print("{}", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await direct.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
