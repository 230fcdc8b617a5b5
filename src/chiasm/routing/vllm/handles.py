"""Embeddings that vLLM's encoders describe, as handles: only what agrees with the medium's own header."""

import hashlib
import time
from collections.abc import Sequence
from math import prod

import msgspec

from chiasm.errors import EngineError, LayoutMismatchError
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.kv import KvMetadata
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata, MediaItem
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.vllm.model import ServedModel, media_uuid
from chiasm.routing.vllm.versions.base import EC_KIND, Described

_NO_CHECKSUM = "none:0"  # vLLM's connectors check, or do not; the control plane never sees the bytes
_WORDS = {"image": "picture", "video": "video"}
_MAX_TIME_S = 1e-6
_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}


def handles_of(
    described: Sequence[Described], request: EncodeRequest, model: ServedModel, ttl_s: float
) -> tuple[EmbeddingHandle, ...]:
    """One handle per item.

    A consumer believes what it is told: too small a grid gives a wrong answer, too large a one ends its engine.

    Raises:
        LayoutMismatchError: A grid is not the one that follows from the picture's size.
        EngineError: An item has no embedding, or one under another name than its identity.
    """
    items = request.items
    by_place = {place: one for one in described for place in one.places}
    if len(by_place) != len(items) or any(place >= len(items) for place in by_place):
        raise EngineError(
            f"The encoder described {len(by_place)} embeddings for {len(items)} pictures",
            hint="Start it with an EC connector in the role of a producer",
        )
    for place, item in enumerate(items):
        if by_place[place].key != media_uuid(item.identity, request.cache_salt):
            raise EngineError(
                "The encoder keeps an embedding under another name than the picture's uuid",
                hint="Start encoders and consumers without --mm-processor-kwargs that differ from request to request",
            )
    return tuple(_handle(by_place[place], item, model, ttl_s) for place, item in enumerate(items))


def kv_metadata(model: ServedModel, num_tokens: int, request: GenerateRequest) -> KvMetadata:
    """What is known of keys and values that a server keeps: vLLM's connectors compare the rest themselves."""
    text = model.text
    num_heads = int(text["num_attention_heads"])
    head_dim = int(text.get("head_dim") or int(text["hidden_size"]) // num_heads)
    kv_heads = int(text.get("num_key_value_heads") or num_heads)
    named = msgspec.json.encode([request.prompt, [item.identity for item in request.items]])
    return KvMetadata(
        num_tokens=num_tokens,
        shape=(int(text["num_hidden_layers"]), 2, kv_heads, num_tokens, head_dim),
        dtype=_DTYPES[model.dtype],  # type: ignore[arg-type]
        model_revision=model.revision,
        prompt_hash=hashlib.sha256(named).hexdigest(),
        checksum=_NO_CHECKSUM,
    )


def _handle(described: Described, item: MediaItem, model: ServedModel, ttl_s: float) -> EmbeddingHandle:
    plan = model.plan(item)
    if described.grid_thw != plan.grid_thw:
        raise LayoutMismatchError(
            f"The encoder's grid of a {item.width}x{item.height} {_WORDS[item.kind]} is {described.grid_thw}, "
            f"not {plan.grid_thw}",
            hint="The encoder resizes pictures in another way: give it the model directory that the gateway has",
        )
    if item.kind == "video":
        _check_times(described.times_s, plan.grid_times_s)
    num_embeddings = prod(plan.grid_thw) // plan.merge_size**2 if plan.grid_thw else plan.num_embeddings
    return EmbeddingHandle(
        connector=EC_KIND,
        key=described.key,
        address=described.address,
        metadata=EmbeddingMetadata(
            kind=item.kind,
            second_per_grid_s=plan.second_per_grid_s,
            identity=item.identity,
            num_embeddings=num_embeddings,
            shape=(num_embeddings, model.embedding_width),
            dtype=_DTYPES[model.dtype],  # type: ignore[arg-type]
            grid_thw=plan.grid_thw,
            merge_size=plan.merge_size,
            model_revision=model.revision,
            processor_revision=model.processor_revision,
            checksum=_NO_CHECKSUM,
        ),
        expires_at_s=time.time() + ttl_s,
    )


def _check_times(found: Sequence[float], expected: Sequence[float]) -> None:
    """Times stand in the prompt: others would be another one. Models without them in the prompt have none."""
    if found and (
        len(found) != len(expected) or any(abs(a - b) > _MAX_TIME_S for a, b in zip(found, expected, strict=True))
    ):
        raise LayoutMismatchError(
            "The encoder's times of a video's frames are not those of the frames that it was sent",
            hint="Start the encoder with VLLM_MEDIA_CONNECTOR=chiasm and without --media-io-kwargs",
        )
