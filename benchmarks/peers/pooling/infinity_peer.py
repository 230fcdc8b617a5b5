"""infinity-emb's engine without HTTP, torch on CPU; runs in an environment that has it."""

import asyncio
import importlib.metadata
import threading

import torch
from infinity_emb import AsyncEngineArray, EngineArgs

from benchmarks.peers.pooling.protocol import serve


class Infinity:
    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        arguments = EngineArgs(
            model_name_or_path=model, engine="torch", device="cpu", dtype=dtype, bettertransformer=False
        )
        self.engine = AsyncEngineArray.from_args([arguments])[0]
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self.engine.astart(), self.loop).result()
        return {"infinity-emb": importlib.metadata.version("infinity-emb"), "torch": torch.__version__}

    def score(self, query: str, documents: list[str]) -> list[float]:
        work = self.engine.rerank(query=query, docs=documents, raw_scores=True)
        results, _ = asyncio.run_coroutine_threadsafe(work, self.loop).result()
        by_index = {result.index: float(result.relevance_score) for result in results}
        return [by_index[index] for index in range(len(documents))]


if __name__ == "__main__":
    serve(Infinity())
