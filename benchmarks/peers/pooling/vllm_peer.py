"""vLLM on CPU, in its own process, without HTTP; runs in the environment of peers/install_vllm.sh.

Its offline API computes one call at a time, so callers queue up.
"""

import torch
import vllm
from vllm import LLM, PoolingParams

from benchmarks.peers.pooling.protocol import MAX_TOKENS, OneAtATime, serve


class Vllm(OneAtATime):
    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        self.llm = LLM(model, runner="pooling", dtype=dtype, max_model_len=MAX_TOKENS, enforce_eager=True)
        return {"vllm": vllm.__version__, "torch": torch.__version__}

    def compute(self, query: str, documents: list[str]) -> list[float]:
        params = PoolingParams(use_activation=False)
        outputs = self.llm.score(query, documents, pooling_params=params, use_tqdm=False)
        return [output.outputs.score for output in outputs]


if __name__ == "__main__":
    serve(Vllm())
