"""vLLM on CPU, offline, in this process: no HTTP, no engine process, no prefix cache. Runs in its own environment."""

import base64
import time

import torch
import vllm
from vllm import LLM, SamplingParams

from benchmarks.peers.protocol import Request, serve, wait_until

LIMITS = {"max_model_len": 2048, "max_num_seqs": 16, "enable_prefix_caching": False, "disable_log_stats": True}


class VLLM:
    def __init__(self, *, eager: bool) -> None:
        self.eager = eager

    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        with open(f"{model}/config.json") as file:  # noqa: PTH123
            has_pictures = "vision_config" in file.read()
        limits = {"limit_mm_per_prompt": {"image": 1, "video": 0}, "mm_processor_cache_gb": 0} if has_pictures else {}
        self.llm = LLM(model=model, dtype=dtype, enforce_eager=self.eager, **LIMITS, **limits)
        return {"vllm": vllm.__version__, "torch": torch.__version__, "mode": "eager" if self.eager else "compiled"}

    def tokens(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = self.llm.generate(inputs, _greedy(num_tokens), use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def mix(self, requests: list[Request]) -> list[float]:
        engine, started, done_s = self.llm.llm_engine, time.perf_counter(), [0.0] * len(requests)
        waiting = list(enumerate(requests))
        while waiting or engine.has_unfinished_requests():
            while waiting and waiting[0][1].at_s <= time.perf_counter() - started:
                number, request = waiting.pop(0)
                prompt = {"prompt_token_ids": request.token_ids}
                engine.add_request(str(number), prompt, _greedy(request.num_tokens))
            if not engine.has_unfinished_requests():
                wait_until(started, waiting[0][1].at_s)
                continue
            for output in engine.step():
                if output.finished:
                    done_s[int(output.request_id.split("-")[0])] = time.perf_counter() - started
        return done_s

    def picture(self, encoded: bytes, question: str) -> None:
        url = "data:image/png;base64," + base64.b64encode(encoded).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
        self.llm.chat([{"role": "user", "content": content}], _greedy(1), use_tqdm=False)


def _greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, detokenize=False)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--compiled", action="store_true")
    serve(VLLM(eager=not parser.parse_args().compiled))
