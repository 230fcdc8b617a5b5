"""Chiasm's pooling worker without HTTP."""

import asyncio
import threading

import torch

import chiasm
from benchmarks.peers.pooling.protocol import serve
from chiasm.launch.pooling import start_pooling_worker
from chiasm.protocol.pooling.work import PairInput, PoolParams, PoolRequest
from chiasm.settings import resolve


class Chiasm:
    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        overrides = [f"engine.model={model}", f"engine.dtype={dtype}", f"engine.threads={threads}"]
        settings = resolve(environment={}, overrides=overrides).settings
        self.worker = start_pooling_worker(settings, lambda _what, _share: None)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return {"chiasm": chiasm.__version__, "torch": torch.__version__}

    def score(self, query: str, documents: list[str]) -> list[float]:
        request = PoolRequest(
            request_id="",
            task="score",
            inputs=tuple(PairInput(query, document) for document in documents),
            params=PoolParams(truncate="end", activate=False),
        )
        response = asyncio.run_coroutine_threadsafe(self.worker.pool(request), self.loop).result()
        return [float(one.values[0]) for one in response.outputs]


if __name__ == "__main__":
    serve(Chiasm())
