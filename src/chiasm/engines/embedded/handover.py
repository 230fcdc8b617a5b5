"""What a prompt's keys and values are on their way to another worker."""

import hashlib

import torch

from chiasm.connectors.base import ExpectedKv, checksum
from chiasm.engines.embedded.buffers import dtype_name, tensor_bytes
from chiasm.engines.embedded.core import EngineCore
from chiasm.engines.embedded.sequence import PlannedPrompt
from chiasm.protocol.kv import KvMetadata


def expected_kv(core: EngineCore, prompt: PlannedPrompt) -> ExpectedKv:
    """What this model's keys and values of a prompt must be announced as."""
    layers, kv_heads, head_dim, dtype = core.kv_layout
    return ExpectedKv(
        num_tokens=prompt.num_tokens,
        shape=(layers, 2, kv_heads, prompt.num_tokens, head_dim),
        dtype=dtype_name(dtype),
        model_revision=prompt.model_revision,
        prompt_hash=prompt_hash(prompt),
    )


def describe_kv(prompt: PlannedPrompt, kv: torch.Tensor) -> KvMetadata:
    """Announce computed keys and values [layers, 2, kv_heads, num_tokens, head_dim]."""
    layers, two, kv_heads, num_tokens, head_dim = kv.shape
    return KvMetadata(
        num_tokens=num_tokens,
        shape=(layers, two, kv_heads, num_tokens, head_dim),
        dtype=dtype_name(kv.dtype),
        model_revision=prompt.model_revision,
        prompt_hash=prompt_hash(prompt),
        checksum=checksum(tensor_bytes(kv)),
    )


def prompt_hash(prompt: PlannedPrompt) -> str:
    """Identity of a prompt under a model: its tokens, and which medium stands where among them."""
    digest = hashlib.sha256(prompt.namespace.encode())
    digest.update(prompt.token_ids.tobytes())
    for span in prompt.media:
        digest.update(f"|{span.key}@{span.offset}".encode())
    return digest.hexdigest()
