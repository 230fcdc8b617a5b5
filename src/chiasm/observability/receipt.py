"""The stage receipt of one request: where the time to the first token went.

Stages overlap (the second picture is decoded while the first is encoded), so durations cannot just be added. Each
instant before the first token is charged to exactly one stage: of those active then, the one furthest along the
path. What no stage covers is `unaccounted_s`; the stages and it add up to the time to the first token by construction.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

STAGES = (
    "receive",  # the body to a request that was understood and may be served
    "queue",  # waiting for admission at the gateway
    "fetch",  # data URL, file or download to checked bytes with an identity
    "route",  # choosing workers, and the way to the first
    "adapter",  # reading a LoRA adapter that was not in memory
    "prompt",  # chat template and tokens, and the engine's sequences made of them
    "decode_media",  # encoded bytes to pixels
    "prepare",  # pixels to the model's patches
    "encode_queue",  # waiting for the encoder
    "encode",  # vision tower and projector
    "transfer",  # embedding from producer to consumer
    "prefill_queue",  # waiting for a slot and for step budget
    "prefill",  # steps that computed this prompt
    "tokenize",  # texts to tokens, where nothing is generated
    "pool_queue",  # waiting for a batch
    "forward",  # batches that computed this request's inputs
    "post",  # vectors and logits to what was asked for
    "kv_transfer",  # keys and values from the prefilling to the decoding worker
    "first_token",  # sampling to the first event leaving the gateway, delivery included
)
"""Stages before the first token, in path order. Time after it is `decode_s`."""
EXPECTED, ACTUAL = "expected_s_", "actual_s_"
"""Beginnings of a worker's totals that are seconds of a stage, as predicted and as they turned out."""
_Clipped = tuple[float, float, int]
_ORDER = {stage: position for position, stage in enumerate(STAGES)}


class Span(msgspec.Struct, frozen=True):
    """One interval of work. Times in seconds from the owner's start of the request; `item` is a media position."""

    stage: str
    start_s: float
    end_s: float
    item: int | None = None

    def shifted(self, by_s: float) -> "Span":
        """The same span on a clock whose zero is `by_s` seconds earlier."""
        return Span(self.stage, self.start_s + by_s, self.end_s + by_s, self.item)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of one stage on one worker. `outcome` is 'ok' or an error code; `items` are media positions."""

    stage: str
    worker: str
    outcome: str
    items: tuple[int, ...] = ()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The way a request took.

    Attributes:
        reason: A sentence with the numbers that decided.
        attempts: In the order of their ends.
        expected_s: Seconds of work that the learned costs said of it, of all its pictures (`encode`) and of its prompt
            (`prefill`); what it came to is in the receipt's spans.
    """

    path: str
    policy: str
    reason: str = ""
    attempts: tuple[Attempt, ...] = ()
    expected_s: dict[str, float] = {}


class MediaSize(msgspec.Struct, frozen=True):
    """A medium without its content: `key` is the same for the same content at the same gateway process, and no more."""

    key: str
    num_pixels: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a request cost and which way it took. `sum(stages_s.values()) + unaccounted_s == ttft_s`."""

    request_id: str
    came_unix_s: float = 0.0
    media: tuple[MediaSize, ...] = ()
    model: str
    outcome: str
    ttft_s: float | None
    e2e_s: float
    stages_s: dict[str, float]
    unaccounted_s: float
    decode_s: float
    num_items: int = 0
    num_visual_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_embeddings: int = 0
    route: Route | None = None
    spans: tuple[Span, ...] = ()


class StageClock:
    """Collects spans relative to its own creation. Appending is atomic, so any thread may add."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.spans: list[Span] = []

    def now_s(self) -> float:
        """Seconds since creation."""
        return time.perf_counter() - self.start

    def add(self, stage: str, start_s: float, end_s: float, item: int | None = None) -> None:
        """Record an interval already measured on this clock."""
        self.spans.append(Span(stage, start_s, end_s, item))

    def stage(self, stage: str, item: int | None = None) -> "_Stage":
        """Record the time spent inside the block, also when it raises."""
        return _Stage(self, stage, item)


class _Stage:
    """A block whose time is recorded. Not a generator: it stands around everything that is done for a request."""

    __slots__ = ("_clock", "_item", "_stage", "_start_s")

    def __init__(self, clock: StageClock, stage: str, item: int | None) -> None:
        self._clock = clock
        self._stage = stage
        self._item = item

    def __enter__(self) -> None:
        self._start_s = self._clock.now_s()

    def __exit__(self, *_: object) -> None:
        self._clock.add(self._stage, self._start_s, self._clock.now_s(), self._item)


def attribute(spans: Iterable[Span], until_s: float) -> dict[str, float]:
    """Seconds of [0, until_s] charged to each stage, every instant once; the furthest active stage gets it."""
    clipped: list[_Clipped] = []
    for span in spans:
        start_s, end_s = span.start_s, span.end_s
        if start_s < 0.0:
            start_s = 0.0
        if end_s > until_s:
            end_s = until_s
        position = _ORDER.get(span.stage)
        if end_s > start_s and position is not None:
            clipped.append((start_s, end_s, position))
    clipped.sort()
    charged: dict[int, float] = {}
    for start_s, end_s, position in clipped if _are_apart(clipped) else _split(clipped):
        charged[position] = charged.get(position, 0.0) + end_s - start_s
    return {STAGES[position]: charged[position] for position in sorted(charged)}


def _are_apart(clipped: list[_Clipped]) -> bool:
    """Whether one ends before the next begins, as it is where a request has no media: most have nothing to split."""
    reached_s = 0.0
    for start_s, end_s, _ in clipped:
        if start_s < reached_s:
            return False
        reached_s = end_s
    return True


def _split(clipped: list[_Clipped]) -> Iterator[_Clipped]:
    """Every instant once: between two edges, the stage furthest along of those active there."""
    edges = sorted({edge_s for start_s, end_s, _ in clipped for edge_s in (start_s, end_s)})
    for left_s, right_s in pairwise(edges):
        active = [position for start_s, end_s, position in clipped if start_s <= left_s and end_s >= right_s]
        if active:
            yield left_s, right_s, max(active)
