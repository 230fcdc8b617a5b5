"""transformers' `generate`: dynamic cache, static batches, padded on the left where lengths differ."""

import io
import time
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from benchmarks.peers import models
from benchmarks.peers.protocol import Request, serve, wait_until

BATCH = 16


class Generate:
    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        self.model = models.load(model, dtype, threads)
        if hasattr(self.model.config, "vision_config"):
            self.tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
            self.processor = Qwen2VLImageProcessorPil.from_pretrained(model)
        return models.versions()

    @torch.inference_mode()
    def tokens(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        return self._generate(num_tokens, input_ids=ids, attention_mask=mask)[:, longest:].tolist()

    def mix(self, requests: list[Request]) -> list[float]:
        """Batches of `BATCH` in order of arrival; a batch starts when its last request is there."""
        started, done_s = time.perf_counter(), []
        for batch in (requests[i : i + BATCH] for i in range(0, len(requests), BATCH)):
            wait_until(started, max(request.at_s for request in batch))
            self.tokens([r.token_ids for r in batch], max(r.num_tokens for r in batch))
            done_s += [time.perf_counter() - started] * len(batch)
        return done_s

    @torch.inference_mode()
    def picture(self, encoded: bytes, question: str) -> None:
        messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        pixels = self.processor(images=[Image.open(io.BytesIO(encoded)).convert("RGB")], return_tensors="pt")
        image = self.model.config.image_token_id
        count = int(pixels["image_grid_thw"].prod()) // self.processor.merge_size**2
        ids = [token for t in ids for token in ([t] * count if t == image else [t])]
        tensor = torch.tensor([ids])
        self._generate(
            1,
            input_ids=tensor,
            attention_mask=torch.ones_like(tensor),
            mm_token_type_ids=(tensor == image).int(),
            **pixels,
        )

    def _generate(self, num_tokens: int, **inputs: Any) -> torch.Tensor:
        return self.model.generate(
            **inputs, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )


if __name__ == "__main__":
    serve(Generate())
