"""Request bodies, made before anything is sent."""

import random
from typing import Any

import msgspec
import pybase64

from chiasm.bench.workload.classes import RequestClass
from chiasm.bench.workload.pictures import PictureSource
from chiasm.bench.workload.text import words
from chiasm.bench.workload.videos import MEDIA_TYPE, VideoSource


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What the server understands beyond the OpenAI API.

    `has_exact_length`: `min_tokens` and `ignore_eos`, so that answers have the length that was asked for.
    `has_receipts`: Chiasm's stage receipts.
    """

    model: str
    has_exact_length: bool = True
    has_receipts: bool = True


class BodyMaker:
    """Makes the bodies of one plan, in order: pictures that may be sent again are those of earlier requests.

    With a `text_seed` of their own, requests ask other things about the pictures of `seed`.
    """

    def __init__(
        self, classes: tuple[RequestClass, ...], dialect: Dialect, seed: str, text_seed: str | None = None
    ) -> None:
        self._dialect = dialect
        self._seed = text_seed or seed
        self._pictures = {one.name: PictureSource(one, seed) for one in classes}
        self._videos = {one.name: VideoSource(one, seed) for one in classes}

    def make(self, kind: RequestClass, index: int) -> bytes:
        """The body of request `index`."""
        rng = random.Random(f"{self._seed}:{index}")  # noqa: S311 - reproducible, not secret
        return msgspec.json.encode({"model": self._dialect.model} | self._content(kind, rng))

    def _content(self, kind: RequestClass, rng: random.Random) -> dict[str, Any]:
        if kind.kind == "embeddings":
            return {"input": [words(kind.text_tokens, rng) for _ in range(kind.texts)]}
        if kind.kind == "rerank":
            documents = [words(kind.text_tokens, rng) for _ in range(kind.texts)]
            return {"query": words(min(16, kind.text_tokens), rng), "documents": documents}
        options = self._generation(kind)
        if kind.kind == "completions":
            return {"prompt": words(kind.text_tokens, rng)} | options
        pictures = [self._picture(kind, rng) for _ in range(kind.images)]
        videos = [self._video(kind) for _ in range(kind.videos)]
        parts = [*pictures, *videos, {"type": "text", "text": words(kind.text_tokens, rng)}]
        return {"messages": [{"role": "user", "content": parts}]} | options

    def _generation(self, kind: RequestClass) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_tokens": kind.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._dialect.has_exact_length:
            options |= {"min_tokens": kind.output_tokens, "ignore_eos": True}
        if self._dialect.has_receipts:
            options["chiasm"] = {"receipt": True}
        return options

    def _picture(self, kind: RequestClass, rng: random.Random) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": _data_url(*self._pictures[kind.name].next(rng))}}

    def _video(self, kind: RequestClass) -> dict[str, Any]:
        return {"type": "video_url", "video_url": {"url": _data_url(MEDIA_TYPE, self._videos[kind.name].next())}}


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{pybase64.b64encode(data).decode()}"
