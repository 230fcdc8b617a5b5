"""Greedy tokens of the engine against `generate` of transformers, for every family and every way through the engine."""

import asyncio
import random
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from chiasm.media.identity import content_identity
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    ItemPart,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TokenEvent,
    Usage,
)
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.settings import EngineSettings, MediaSettings
from chiasm.workers.local import LocalWorker
from tests.conditions import until
from tests.numeric.random_models import PICTURE_FAMILIES, RECIPES, build, reference_inputs, reference_model

NUM_TOKENS = 12


@dataclass
class Conversation:
    """Parts in order: text, or the number of a picture."""

    parts: list[str | int]
    pictures: list[Image.Image] = field(default_factory=list)

    def request(self, name: str, *, num_tokens: int = NUM_TOKENS) -> GenerateRequest:
        parts = tuple(TextPart(part) if isinstance(part, str) else ItemPart(part) for part in self.parts)
        return GenerateRequest(
            request_id=name,
            prompt=ChatPrompt((Message("user", parts),)),
            items=tuple(map(media_item, self.pictures)),
            sampling=SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True),
        )


def media_item(picture: Image.Image) -> MediaItem:
    file = BytesIO()
    picture.save(file, "PNG")
    data = file.getvalue()
    return MediaItem(
        identity=content_identity(data),
        format="png",
        width=picture.width,
        height=picture.height,
        source=InlineSource(data),
    )


def picture(rng: random.Random) -> Image.Image:
    size = (rng.randint(30, 160), rng.randint(30, 160))
    return Image.frombytes("RGB", (8, 8), rng.randbytes(192)).resize(size, Image.Resampling.BICUBIC)


def conversations(family: str) -> list[Conversation]:
    rng = random.Random(7)
    texts = [Conversation([text]) for text in ("hello", "what is this? " * 5, "a")]
    if family not in PICTURE_FAMILIES:
        return texts
    a, b, c = (picture(rng) for _ in range(3))
    return [
        *texts,
        Conversation([0, "what?"], [a]),
        Conversation(["first ", 0, " then ", 1, " end"], [a, b]),
        Conversation(["first ", 0, " then ", 1, " end"], [b, a]),
        Conversation([0, 1, 2, 3, " which?"], [a, a, c, a]),
        Conversation(["again ", 0, " and ", 0], [c]),
    ]


async def answer(worker: LocalWorker, request: GenerateRequest) -> tuple[list[int], Usage]:
    tokens: list[int] = []
    async for event in worker.generate(request):
        if isinstance(event, TokenEvent):
            tokens.extend(event.token_ids)
        if isinstance(event, RequestFinished):
            return tokens, event.usage
    raise AssertionError("the stream ended without a result")


async def answers(worker: LocalWorker, all_: list[Conversation]) -> list[list[int]]:
    results = await asyncio.gather(*(answer(worker, c.request(str(i))) for i, c in enumerate(all_)))
    return [tokens for tokens, _ in results]


def reference(family: str, directory: Path, worker: LocalWorker, all_: list[Conversation]) -> list[list[int]]:
    model = reference_model(family, directory)
    expected = []
    for conversation in all_:
        request = conversation.request("reference")
        preparer = worker.preparer
        plans = [preparer.plan(item.width, item.height) for item in request.items] if preparer else []
        token_ids = worker._engine.language.planner.plan(request, plans).prompt.token_ids.tolist()
        shown = [part for part in conversation.parts if isinstance(part, int)]
        prepared = [preparer.prepare(conversation.pictures[number]) for number in shown] if preparer else []
        inputs = reference_inputs(family, token_ids, prepared)
        with torch.no_grad():
            output = model.generate(
                **inputs, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
            )
        expected.append(output[0, len(token_ids) :].tolist())
    return expected


def start(directory: Path, **engine: object) -> LocalWorker:
    settings = EngineSettings(**({"threads": 1, "max_running": 4, "prefix_cache_bytes": 2**22} | engine))
    return LocalWorker.start(directory, "model", settings, MediaSettings(), lambda what, share: None)


def held(worker: LocalWorker) -> tuple[int, int, int]:
    stats = worker.stats()
    return stats.num_running, stats.num_held_embeddings, stats.num_open_requests


WAYS = {
    "whole prompts": {},
    "chunks of 24": {"max_step_tokens": 24},
    "no caches": {"prefix_cache_bytes": 0, "embedding_cache_bytes": 0},
    "torch": {"decoder": "torch", "max_step_tokens": 24},
    "torch with plain weights": {"decoder": "torch", "pack_weights": False},
}


@pytest.fixture(scope="module", params=sorted(RECIPES))
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def directory(family, tmp_path_factory) -> Path:
    return build(family, tmp_path_factory.mktemp("models") / family)


@pytest.fixture(scope="module")
def expected(family, directory) -> list[list[int]]:
    worker = start(directory)
    all_ = conversations(family)
    tokens = reference(family, directory, worker, all_)
    asyncio.run(worker.aclose())
    assert len({tuple(t) for t in tokens}) >= len(tokens) - 1, "the reference must tell the conversations apart"
    return tokens


@pytest.mark.parametrize("way", WAYS)
async def test_concurrent_requests_give_the_tokens_of_generate(family, directory, expected, way):
    worker = start(directory, **WAYS[way])
    try:
        all_ = conversations(family)
        assert await answers(worker, all_) == expected, "cold"
        assert await answers(worker, all_) == expected, "warm"
        await until(lambda: held(worker) == (0, 0, 0))
        if way == "whole prompts":
            assert worker.stats().totals["cached_prompt_tokens"] > 0
    finally:
        await worker.aclose()
