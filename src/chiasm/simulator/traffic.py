"""What comes in: classes of requests, when they arrive, and which media they bring again."""

import math
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from random import Random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Spread = Literal["constant", "exponential"]
Arrivals = Literal["constant", "poisson", "gamma"]

MAX_IMAGES = 10_000
MAX_PIXELS = 10**12
MAX_TOKENS = 100_000_000
MIN_RATE_PER_S, MAX_RATE_PER_S = 1e-6, 1e6
MAX_REQUESTS = 10_000_000

Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]

MAX_RECENT = 1_000_000


class RequestClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that are alike.

    Attributes:
        share: Of all requests, relative to the other classes' shares.
        num_pixels: Of each picture; its mean where `pixel_spread` is not constant.
        visual_tokens: Of each picture; goes with its pixels where they vary.
        text_tokens: Of the prompt besides its pictures.
        repeat_share: Probability that all pictures are those of an earlier request, so that caches may have them.
        repeat_among: Such a request has those of one of the last so many that had new ones.
        pictures_first: Whether prompts begin with their pictures, so that a repeat finds keys and values cached too.
    """

    name: str = "all"
    share: Annotated[float, Meta(ge=1e-9, le=1e9)] = 1.0
    num_images: Annotated[int, Meta(ge=0, le=MAX_IMAGES)] = 0
    num_pixels: Annotated[int, Meta(ge=1, le=MAX_PIXELS)] = 448 * 448
    pixel_spread: Spread = "constant"
    visual_tokens: Tokens = 256
    text_tokens: Tokens = 64
    output_tokens: Tokens = 128
    output_spread: Spread = "constant"
    repeat_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repeat_among: Annotated[int, Meta(ge=1, le=MAX_RECENT)] = 64
    pictures_first: bool = True


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream of requests. `shape` is that of gamma arrivals: below 1 they come in bursts, 1 is Poisson."""

    classes: Annotated[tuple[RequestClass, ...], Meta(min_length=1, max_length=1000)] = (RequestClass(),)
    rate_per_s: Annotated[float, Meta(ge=MIN_RATE_PER_S, le=MAX_RATE_PER_S)] = 1.0
    arrivals: Arrivals = "poisson"
    shape: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0
    num_requests: Annotated[int, Meta(ge=1, le=MAX_REQUESTS)] = 2000
    seed: int = 0


class Picture(msgspec.Struct, frozen=True):
    """A medium of a request; the same identity is the same bytes."""

    identity: str
    num_pixels: int
    num_tokens: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    Attributes:
        prefix: Names its prompt's start up to the last picture; empty when nobody may share it.
        blocks: Names of the starts of its text in steps of `block_tokens`, where it has no pictures.
    """

    number: int
    at_s: float
    class_name: str
    text_tokens: int
    output_tokens: int
    pictures: tuple[Picture, ...] = ()
    prefix: str = ""
    blocks: tuple[str, ...] = ()
    block_tokens: int = 512

    @property
    def prompt_tokens(self) -> int:
        """Of text and pictures."""
        return self.text_tokens + sum(one.num_tokens for one in self.pictures)


def requests_of(traffic: Traffic) -> Iterator[Request]:
    """The requests in the order in which they come. The same traffic gives the same ones.

    Each class draws from a stream of its own, so that another class's numbers do not change it.
    """
    times, kinds = Random(f"{traffic.seed}.times"), Random(f"{traffic.seed}.kinds")
    makers = [_Maker(kind, traffic.seed) for kind in traffic.classes]
    shares = list(accumulate(kind.share for kind in traffic.classes))
    at_s = 0.0
    for number in range(traffic.num_requests):
        maker = kinds.choices(makers, cum_weights=shares)[0] if len(makers) > 1 else makers[0]
        yield maker.request(number, at_s)
        at_s += _gap_s(traffic, times)


def _gap_s(traffic: Traffic, times: Random) -> float:
    if traffic.arrivals == "constant":
        return 1.0 / traffic.rate_per_s
    if traffic.arrivals == "poisson":
        return times.expovariate(traffic.rate_per_s)
    return times.gammavariate(traffic.shape, 1.0 / (traffic.shape * traffic.rate_per_s))


class _Maker:
    """Makes the requests of one class."""

    def __init__(self, kind: RequestClass, seed: int) -> None:
        self._kind = kind
        self._random = Random(f"{seed}.{kind.name}")
        self._recent: deque[tuple[Picture, ...]] = deque(maxlen=kind.repeat_among)
        self._num_new = 0

    def request(self, number: int, at_s: float) -> Request:
        kind = self._kind
        is_repeat = bool(self._recent) and self._random.random() < kind.repeat_share
        pictures = self._random.choice(self._recent) if is_repeat else self._new()
        return Request(
            number=number,
            at_s=at_s,
            class_name=kind.name,
            text_tokens=kind.text_tokens,
            output_tokens=self._spread(kind.output_tokens, kind.output_spread),
            pictures=pictures,
            prefix=pictures[0].identity if pictures and kind.repeat_share and kind.pictures_first else "",
        )

    def _new(self) -> tuple[Picture, ...]:
        kind = self._kind
        pictures = tuple(self._picture() for _ in range(kind.num_images))
        if pictures and kind.repeat_share:
            self._recent.append(pictures)
        return pictures

    def _picture(self) -> Picture:
        kind = self._kind
        self._num_new += 1
        num_pixels = self._spread(kind.num_pixels, kind.pixel_spread)
        num_tokens = max(1, round(kind.visual_tokens * num_pixels / kind.num_pixels))
        return Picture(f"{kind.name}-{self._num_new}", num_pixels, num_tokens)

    def _spread(self, mean: int, spread: Spread) -> int:
        if spread == "constant":
            return mean
        return max(1, math.ceil(self._random.expovariate(1.0 / mean)))
