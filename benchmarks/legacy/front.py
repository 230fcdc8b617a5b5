"""The first hop: raw data in, padded ids or pixels to the model server, its numbers to a ranked answer.

`python -m benchmarks.legacy.front text|pictures MODEL MODEL_SERVER` prints its address when it is ready.
"""

import asyncio
import base64
import json
import math
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from benchmarks.legacy.serving import serve
from benchmarks.peers.pooling.protocol import MAX_TOKENS

Prepare = Callable[[dict[str, Any]], dict[str, Any]]


def text_preparer(directory: str) -> Prepare:
    """Pairs, padded to a fixed length."""
    tokenizer = AutoTokenizer.from_pretrained(directory)

    def prepare(data: dict[str, Any]) -> dict[str, Any]:
        candidates = data["candidates"]
        encoded = tokenizer(
            [data["query"]] * len(candidates),
            candidates,
            padding="max_length",
            truncation=True,
            max_length=MAX_TOKENS,
        )
        return dict(encoded)

    return prepare


def picture_preparer(directory: str) -> Prepare:
    """Pictures decoded and resized as the model's processor does it, as float32 bytes."""
    processor = CLIPImageProcessorPil.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)

    def prepare(data: dict[str, Any]) -> dict[str, Any]:
        files = [base64.b64decode(url.partition(",")[2]) for url in data["candidates"]]
        images = [Image.open(BytesIO(file)).convert("RGB") for file in files]
        pixels = np.ascontiguousarray(processor(images, return_tensors="np")["pixel_values"], np.float32)
        return {
            "input_ids": tokenizer(data["query"])["input_ids"],
            "pixels": base64.b64encode(pixels.tobytes()).decode(),
            "shape": pixels.shape,
        }

    return prepare


def ranked(scores: list[float]) -> list[dict[str, Any]]:
    """Best first."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [{"index": index, "score": scores[index]} for index in order]


def app(kind: str, directory: str, model_server: str) -> Starlette:
    """One route."""
    prepare = text_preparer(directory) if kind == "text" else picture_preparer(directory)
    session: aiohttp.ClientSession

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        nonlocal session
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
            yield

    async def rank(request: Request) -> JSONResponse:
        data = json.loads(await request.body())
        prepared = await asyncio.to_thread(prepare, data)
        async with session.post(f"{model_server}/infer", data=json.dumps(prepared)) as answer:
            answer.raise_for_status()
            outputs = (await answer.json())["outputs"]
        scores = [1 / (1 + math.exp(-logit)) for logit in outputs] if kind == "text" else outputs
        return JSONResponse({"data": {"results": ranked(scores)}})

    return Starlette(routes=[Route("/rank", rank, methods=["POST"])], lifespan=lifespan)


if __name__ == "__main__":
    serve(app(*sys.argv[1:4]))
