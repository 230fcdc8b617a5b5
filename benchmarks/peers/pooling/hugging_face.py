"""transformers as services usually call it: `fixed` pads to 256 tokens, `dynamic` sorts and pads to the batch."""

import sys

import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.peers.pooling.protocol import MAX_TOKENS, OneAtATime, serve


class HuggingFace(OneAtATime):
    def __init__(self, padding: str, batch: int) -> None:
        super().__init__()
        self.padding, self.batch = padding, batch

    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForSequenceClassification.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    @torch.inference_mode()
    def compute(self, query: str, documents: list[str]) -> list[float]:
        order = sorted(range(len(documents)), key=lambda index: len(documents[index]))
        scores = [0.0] * len(documents)
        for start in range(0, len(order), self.batch):
            part = order[start : start + self.batch]
            inputs = self.tokenizer(
                [query] * len(part),
                [documents[index] for index in part],
                padding="max_length" if self.padding == "fixed" else True,
                truncation=True,
                max_length=MAX_TOKENS,
                return_tensors="pt",
            )
            for index, logit in zip(part, self.model(**inputs).logits[:, 0].tolist(), strict=True):
                scores[index] = logit
        return scores


if __name__ == "__main__":
    serve(HuggingFace(sys.argv[1], int(sys.argv[2])))
