"""What one request cost: its clock, its counts, and the receipt they come to."""

import time
from collections.abc import Iterable
from operator import attrgetter

from chiasm.observability.receipt import MediaSize, Receipt, Route, Span, StageClock, attribute
from chiasm.protocol.generation import GenerateEvent, RequestFinished, RouteTaken, TokenEvent, Usage
from chiasm.protocol.media import InlineSource, MediaItem, SpoolSource

FINISHED = "finished"
_start = attrgetter("start_s")
_NOTHING = Usage(num_prompt_tokens=0, num_output_tokens=0)


class Account:
    """Collects stage times and token counts while a request is served. Its clock starts when it is made."""

    def __init__(self, request_id: str, model: str) -> None:
        self._request_id = request_id
        self.model = model
        self._dispatched_s = 0.0
        self._ttft_s: float | None = None
        self._route: Route | None = None
        self.clock = StageClock()
        self.usage = _NOTHING
        self.num_items = 0
        self.media: tuple[MediaSize, ...] = ()
        self._came_unix_s = time.time()
        self.num_streamed_tokens = 0

    def received(self) -> None:
        """Note that the request is understood: until now it was being received."""
        self.clock.add("receive", 0.0, self.clock.now_s())

    def dispatched(self) -> None:
        """Note that the worker gets the request now: the zero of the worker's spans."""
        self._dispatched_s = self.clock.now_s()

    def first_token(self) -> None:
        """Note that output of a stream has left the gateway. Only the first call counts."""
        if self._ttft_s is None:
            self._ttft_s = self.clock.now_s()

    def add(self, batch: Iterable[GenerateEvent]) -> None:
        """Take the route, and usage and spans from the ends of generations."""
        for event in batch:
            if isinstance(event, TokenEvent):
                self.num_streamed_tokens += len(event.token_ids)
            elif isinstance(event, RequestFinished):
                self.usage = event.usage if self.usage is _NOTHING else _sum(self.usage, event.usage)
                spans = [span.shifted(self._dispatched_s) for span in event.spans] if event.spans else []
                self.clock.spans.extend(spans)
                if self._ttft_s is None:  # a whole response: its first token is there when its prompt was computed
                    now_s = self.clock.now_s()
                    ends_s = [span.end_s for span in spans if span.stage == "prefill"]
                    self._ttft_s = min(now_s, max(ends_s)) if ends_s else now_s
            elif isinstance(event, RouteTaken):
                self._route = event.route

    def add_pooled(self, spans: Iterable[Span], usage: Usage) -> None:
        """Take the end of a request that generates nothing: the worker's spans, and what its inputs came to."""
        self.clock.spans.extend(span.shifted(self._dispatched_s) for span in spans)
        self.usage = _sum(self.usage, usage)

    def receipt(self, outcome: str) -> Receipt:
        """The receipt as of now. Without a first token, the stages are those of the whole time."""
        e2e_s = self.clock.now_s()
        until_s = e2e_s if self._ttft_s is None else self._ttft_s
        self._note_delivery(until_s)
        stages_s = attribute(self.clock.spans, until_s)
        usage = self.usage
        return Receipt(
            request_id=self._request_id,
            came_unix_s=self._came_unix_s,
            media=self.media,
            model=self.model,
            outcome=outcome,
            ttft_s=self._ttft_s,
            e2e_s=e2e_s,
            stages_s=stages_s,
            unaccounted_s=until_s - sum(stages_s.values()),
            decode_s=e2e_s - until_s,
            num_items=self.num_items,
            num_visual_tokens=usage.num_visual_tokens,
            num_prompt_tokens=usage.num_prompt_tokens,
            num_cached_tokens=usage.num_cached_tokens,
            num_output_tokens=usage.num_output_tokens,
            num_cached_embeddings=usage.num_cached_embeddings,
            route=self._route,
            spans=tuple(sorted(self.clock.spans, key=_start)),
        )

    def _note_delivery(self, until_s: float) -> None:
        """The way from a worker to the gateway's writing: between the last span before that and its beginning."""
        if self.usage is _NOTHING:
            return
        spans = self.clock.spans
        written = [span.start_s for span in spans if span.stage == "first_token" and span.start_s < until_s]
        if not written:
            return
        written_s = max(written)
        left_s = max((span.end_s for span in spans if span.start_s < written_s), default=written_s)
        if left_s < written_s:
            self.clock.add("first_token", left_s, written_s)


def num_bytes_of(item: MediaItem) -> int:
    """Encoded bytes that an item came with."""
    source = item.source
    if isinstance(source, InlineSource):
        return len(source.data)
    return source.num_bytes if isinstance(source, SpoolSource) else 0


def _sum(first: Usage, second: Usage) -> Usage:
    return Usage(
        num_prompt_tokens=first.num_prompt_tokens + second.num_prompt_tokens,
        num_output_tokens=first.num_output_tokens + second.num_output_tokens,
        num_cached_tokens=first.num_cached_tokens + second.num_cached_tokens,
        num_visual_tokens=first.num_visual_tokens + second.num_visual_tokens,
        num_cached_embeddings=first.num_cached_embeddings + second.num_cached_embeddings,
    )
