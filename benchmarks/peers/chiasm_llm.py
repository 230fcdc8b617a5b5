"""Chiasm's embedded engine through `chiasm.LLM`: the served engine, its checks and media rules, without HTTP."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch

import chiasm
from benchmarks.peers.protocol import Request, serve, wait_until

LIMITS = {"max_running": 16, "max_model_tokens": 2048, "prefix_cache_bytes": 0, "embedding_cache_bytes": 0}
MAX_CLIENTS = 64


class Chiasm:
    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        self.llm = chiasm.LLM(model, dtype=dtype, threads=threads, **LIMITS)
        self.clients = ThreadPoolExecutor(MAX_CLIENTS)
        return {"chiasm": chiasm.__version__, "torch": torch.__version__}

    def tokens(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        results = self.llm.generate(prompts, max_tokens=num_tokens, temperature=0, ignore_eos=True)
        return [result.choices[0].token_ids for result in results]

    def mix(self, requests: list[Request]) -> list[float]:
        started = time.perf_counter()

        def client(request: Request) -> float:
            wait_until(started, request.at_s)
            self.tokens([request.token_ids], request.num_tokens)
            return time.perf_counter() - started

        return list(self.clients.map(client, requests))

    def picture(self, encoded: bytes, question: str) -> None:
        content = [{"type": "image", "image": encoded}, {"type": "text", "text": question}]
        self.llm.chat([{"role": "user", "content": content}], max_tokens=1, temperature=0, ignore_eos=True)


if __name__ == "__main__":
    serve(Chiasm())
