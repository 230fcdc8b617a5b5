"""What fits on a device: weights, the encoder's reservation, keys and values, requests at once.

vLLM measures this when it starts; here it is worked out beforehand. Weights, keys and values, and the encoder's cache
follow from the configuration and are exact. What layers need while they compute is estimated from their widths, with
constants that reproduce what vLLM 0.32 reported for Qwen3-VL-2B on an 8 GB device (tests/unit/launch/vllm/test_fit.py).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from chiasm.launch.vllm.weights import DTYPE_BYTES, Weights
from chiasm.media.prepare.base import ImagePlan

_CUDA_OVERHEAD_BYTES = int(0.55 * 2**30)  # context, kernels, graphs
_ROWS_OF_HIDDEN = 5  # tensors of a layer that live at once, in its width
_ROWS_OF_INTERMEDIATE = 2  # and in its feed-forward's
_LOGITS_COPIES = 2
_LOGITS_BYTES = 4
BLOCK_TOKENS = {"cuda": 16, "cpu": 128}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A device and how vLLM is to use it. `largest` is the largest picture that memory is reserved for."""

    device_bytes: int
    memory_share: float
    device: str = "cuda"
    dtype: str = "bfloat16"
    max_model_tokens: int = 4096
    max_step_tokens: int = 2048
    max_running: int = 128
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    largest: ImagePlan | None = None


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device, and what they are enough for. `kv_tokens` counts all devices of a server together."""

    usable_bytes: int
    weights_bytes: int
    encoder_cache_bytes: int
    encoder_work_bytes: int
    language_work_bytes: int
    overhead_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    full_length_requests: float
    max_picture_embeddings: int

    @property
    def does_fit(self) -> bool:
        """Whether vLLM would start: one request of full length must have room."""
        return self.full_length_requests >= 1


def fit(config: Mapping[str, Any], weights: Weights, asked: Question) -> Fit:
    """Work out a server that has the whole model. `config` is the model's `config.json`."""
    text = config.get("text_config") or config
    vision = config.get("vision_config") or {}
    each, split = DTYPE_BYTES[asked.dtype], asked.tensor_parallel * asked.pipeline_parallel
    usable = int(asked.device_bytes * asked.memory_share)
    weights_bytes = weights.tower_bytes + weights.language_bytes // split
    cache, work, embeddings = _encoder(vision, text, asked, each)
    language = _language_work(text, asked, each)
    overhead = _CUDA_OVERHEAD_BYTES if asked.device == "cuda" else 0
    per_token = kv_bytes_per_token(text, each)
    kv_bytes = max(usable - weights_bytes - cache - work - language - overhead, 0)
    tokens = kv_tokens(kv_bytes * split, per_token, asked.device)
    return Fit(
        usable_bytes=usable,
        weights_bytes=weights_bytes,
        encoder_cache_bytes=cache,
        encoder_work_bytes=work,
        language_work_bytes=language,
        overhead_bytes=overhead,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        kv_tokens=tokens,
        full_length_requests=tokens / asked.max_model_tokens,
        max_picture_embeddings=embeddings,
    )


def kv_bytes_per_token(text: Mapping[str, Any], dtype_bytes: int) -> int:
    """Keys and values of one token, in all layers and heads."""
    heads = int(text["num_attention_heads"])
    head_dim = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
    return 2 * int(text["num_hidden_layers"]) * int(text.get("num_key_value_heads") or heads) * head_dim * dtype_bytes


def kv_tokens(kv_bytes: int, bytes_per_token: int, device: str) -> int:
    """Tokens for which there is room, in whole blocks."""
    block = BLOCK_TOKENS[device]
    return kv_bytes // (bytes_per_token * block) * block


def _encoder(vision: Mapping[str, Any], text: Mapping[str, Any], asked: Question, each: int) -> tuple[int, int, int]:
    """Bytes of the encoder's cache and of its work on the pictures that fill it, and embeddings of the largest one."""
    if asked.largest is None or not vision:
        return 0, 0, 0
    embeddings = asked.largest.num_embeddings
    budget = max(asked.max_step_tokens, embeddings)
    width = int(text["hidden_size"]) * (1 + len(vision.get("deepstack_visual_indexes") or ()))
    patches = embeddings * asked.largest.merge_size**2 * max(budget // embeddings, 1)
    hidden = int(vision.get("hidden_size") or 0)
    intermediate = int(vision.get("intermediate_size") or 4 * hidden)
    row = _ROWS_OF_HIDDEN * hidden + _ROWS_OF_INTERMEDIATE * intermediate
    return budget * width * each, patches * row * each, embeddings


def _language_work(text: Mapping[str, Any], asked: Question, each: int) -> int:
    hidden, intermediate = int(text["hidden_size"]), int(text.get("intermediate_size") or 4 * int(text["hidden_size"]))
    row = _ROWS_OF_HIDDEN * hidden + _ROWS_OF_INTERMEDIATE * intermediate // asked.tensor_parallel
    logits = asked.max_running * int(text["vocab_size"]) * _LOGITS_BYTES * _LOGITS_COPIES
    return asked.max_step_tokens * row * each + logits
