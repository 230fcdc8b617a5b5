"""A model as vLLM serves it, without files."""

import hashlib

from chiasm.media.prepare.base import ImagePlan
from chiasm.protocol.generation import ChatPrompt, GenerateRequest, ItemPart, Message, SamplingParams, TextPart
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.routing.vllm.model import ServedModel

CONFIG = {
    "model_type": "qwen3_vl",
    "text_config": {
        "hidden_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "head_dim": 4,
    },
    "vision_config": {"deepstack_visual_indexes": [1, 2]},
}


class Patches:
    """Patches of 16 pixels, merged two by two."""

    revision = "patches"

    def plan(self, width, height):
        grid = (1, height // 16, width // 16)
        num = grid[1] * grid[2] // 4
        return ImagePlan(
            width=width, height=height, num_embeddings=num, num_prompt_tokens=num, grid_thw=grid, merge_size=2,
            resized=(width, height),
        )  # fmt: skip

    def prepare(self, image):
        raise AssertionError("the gateway decodes nothing")


def model(**fields):
    known = {"name": "m", "revision": "r", "dtype": "float32", "config": CONFIG, "preparer": Patches()}
    return ServedModel(**(known | fields))


def picture(name="p", side=64, source=None):
    data = name.encode()
    identity = hashlib.sha256(data).hexdigest()
    return MediaItem(
        identity=identity, format="png", width=side, height=side, source=source or InlineSource(data)
    )  # fmt: skip


def chat(*parts, items=(), **fields):
    """One user message; numbers are items."""
    made = tuple(TextPart(part) if isinstance(part, str) else ItemPart(part) for part in parts)
    sampling = SamplingParams(**fields.pop("sampling", {}))
    prompt = ChatPrompt((Message("user", made),))
    return GenerateRequest(request_id="r", prompt=prompt, items=items, sampling=sampling, **fields)
