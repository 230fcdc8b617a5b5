"""sentence-transformers' CrossEncoder; runs in an environment that has it."""

import sentence_transformers
import torch

from benchmarks.peers.pooling.protocol import MAX_TOKENS, OneAtATime, serve


class SentenceTransformers(OneAtATime):
    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        options = {"dtype": getattr(torch, dtype)}
        self.model = sentence_transformers.CrossEncoder(
            model, device="cpu", max_length=MAX_TOKENS, model_kwargs=options
        )
        return {"sentence-transformers": sentence_transformers.__version__, "torch": torch.__version__}

    def compute(self, query: str, documents: list[str]) -> list[float]:
        pairs = [(query, document) for document in documents]
        return self.model.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False).tolist()


if __name__ == "__main__":
    serve(SentenceTransformers())
