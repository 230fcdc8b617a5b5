"""transformers' continuous batching (`ContinuousBatchingManager`), with a cache that fits the machine: text only."""

import time

from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.peers import models
from benchmarks.peers.protocol import Request, serve, wait_until

# The defaults size the cache from the host's memory and end in the out-of-memory killer. 64 blocks of 256 tokens hold
# 16 requests of up to 1024 tokens.
LIMITS = {"num_blocks": 64, "max_batch_tokens": 2560, "use_cuda_graph": False}
NO_TOKEN = -1
TIMEOUT_S = 600.0


class Batching:
    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        self.model = models.load(model, dtype, threads)
        config = GenerationConfig(max_new_tokens=64, do_sample=False, eos_token_id=NO_TOKEN, pad_token_id=0)
        self.manager = self.model.init_continuous_batching(
            generation_config=config, continuous_batching_config=ContinuousBatchingConfig(**LIMITS)
        )
        self.manager.start()
        return models.versions()

    def tokens(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        ids = [self._add(prompt, num_tokens) for prompt in prompts]
        results = {}
        while len(results) < len(ids):
            result = self._next()
            results[result.request_id] = result.generated_tokens
        return [results[key] for key in ids]

    def mix(self, requests: list[Request]) -> list[float]:
        started, order, done_s = time.perf_counter(), {}, [0.0] * len(requests)
        waiting = list(enumerate(requests))
        num_done = 0
        while num_done < len(requests):
            if waiting:
                wait_until(started, waiting[0][1].at_s)
                number, request = waiting.pop(0)
                order[self._add(request.token_ids, request.num_tokens)] = number
                continue
            done_s[order[self._next().request_id]] = time.perf_counter() - started
            num_done += 1
        return done_s

    def picture(self, encoded: bytes, question: str) -> None:
        raise NotImplementedError("continuous batching of transformers takes text only")

    def _add(self, prompt: list[int], num_tokens: int) -> str:
        return self.manager.add_request(prompt, max_new_tokens=num_tokens, eos_token_id=NO_TOKEN)

    def _next(self):
        result = self.manager.get_result(timeout=TIMEOUT_S)
        if result is None or result.error:
            raise RuntimeError(f"no result: {result and result.error}")
        return result


if __name__ == "__main__":
    serve(Batching())
