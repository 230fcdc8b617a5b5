"""Metric names, each with its unit, and where they are counted. One registry per application, so tests do not share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from chiasm.observability.memory_metrics import MemoryLevels
from chiasm.observability.receipt import ACTUAL, EXPECTED, Receipt, Span
from chiasm.observability.tallies import Counted, Timed

if TYPE_CHECKING:
    from chiasm.observability.memory import WorkerMemory

_PREFIX = "chiasm_"
_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 30, 60, 120)
_MEDIA_STAGES = frozenset({"fetch", "check", "decode_media", "prepare"})
_SIZES = (("small", 500_000), ("medium", 4_000_000), ("large", float("inf")))
"""Names of pictures of up to so many pixels."""

LEVELS = {
    "requests_open": "Requests that have come and not ended.",
    "requests_running": "Requests with a running slot.",
    "requests_queued": "Requests that wait for a running slot.",
    "refusals_waiting": "Refusals whose answers wait, since their tenants ask on without a pause.",
    "ready": "1 while new requests are taken.",
    "gateways": "Gateways that share a store, this one too, when it last answered.",
    "hints_learned": "What other gateways told of where contents are cached, of workers that this one knows, too.",
    "hints_skipped": "What other gateways told that this version does not understand.",
    "store_up": "1 while the store that gateways share answers, or none is shared.",
    "encoder_queue_seconds": "Predicted work of encoders not done yet, per ready encoder.",
    "prefill_queue_seconds": "Predicted work of prefill not done yet, per ready worker.",
    "predicted_slo_misses": "Waiting requests that will have no first token within gateway.ttft_slo_s.",
    "encoders_wanted": "Encoders that the autoscaler of a cluster wants, whether or not it acts.",
    "is_healthy": "1 while the engine, or every stage of the fleet, has what it needs.",
    "running": "Sequences computed now.",
    "waiting": "Sequences that wait for a slot.",
    "free_slots": "Slots without a sequence.",
    "cached_blocks": "Prefix blocks kept for reuse.",
    "pinned_blocks": "Prefix blocks that requests under way use.",
    "cached_embeddings": "Embeddings in memory.",
    "held_embeddings": "Embeddings that requests under way use.",
    "open_requests": "Requests inside the worker.",
    "offered_tensors": "Tensors that other workers may take.",
    "decoding_pictures": "Pictures being decoded, or waiting for a thread.",
    "decoding_pixels": "Their pixels.",
    "adapters": "LoRA adapters in memory.",
}
"""What levels mean, without their prefix. Engines may count more."""

_BY_STAGE = {
    EXPECTED: ("stage_expected_seconds", "What the learned costs said of a stage's work before it was done."),
    ACTUAL: ("stage_actual_seconds", "What the same work took: over it, how wrong predictions are."),
}

Levels = Callable[[], Mapping[str, float]]


class GatewayMetrics:
    """Counters and histograms of requests, and a view of levels that others hold.

    Every request counted in `chiasm_requests_received_total` is counted once in `chiasm_requests_total`, by outcome.
    """

    def __init__(self, levels: Levels, worker_levels: Levels, worker_totals: Levels) -> None:
        """Take callables that return name -> value: what gateway and worker hold now, and the worker's counts."""
        self.registry = CollectorRegistry()
        self._counters: list[Counted] = []
        self.memory: tuple[WorkerMemory, ...] = ()
        self.registry.register(_Levels(levels, worker_levels, worker_totals))
        self.registry.register(MemoryLevels(lambda: self.memory))
        self._received = self._counter("requests_received", "Requests that reached an endpoint.", ["endpoint"])
        self._ended = self._counter("requests", "Requests that ended.", ["endpoint", "outcome"])
        self._ttft_s = self._histogram("ttft_seconds", "Arrival to first token.", ["endpoint"])
        self._e2e_s = self._histogram("e2e_seconds", "Arrival to end of finished requests.", ["endpoint"])
        self._stage_s = self._histogram(
            "stage_seconds", "Time to first token, or to the answer, charged to a stage.", ["stage"]
        )
        self._media_s = self._histogram(
            "media_seconds", "Time of one medium in a stage, by format and size.", ["stage", "format", "size"]
        )
        self._items = self._counter("media_items", "Media items of requests.")
        self._prompt_items = self._counter("prompt_media_items", "Of these, those of prompts that were computed.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._visual_tokens = self._counter("visual_tokens", "Of the prompt tokens, those of pictures.")
        self._cached_tokens = self._counter("cached_tokens", "Of the prompt tokens, those found in the prefix cache.")
        self._cached_embeddings = self._counter("cached_embeddings", "Pictures not encoded, since cached.")
        self._traces = self._counter(
            "traces", "Requests whose traces a collector took, or that were dropped.", ["outcome"]
        )
        self._output_tokens = self._counter("output_tokens", "Tokens generated for finished requests.")

    def receive(self, endpoint: str) -> None:
        """Count a request that arrived; `end` follows exactly once."""
        self._received.add(1, endpoint)

    def refuse(self, endpoint: str, code: str) -> None:
        """Count a request that arrived and was not let in."""
        self._received.add(1, endpoint)
        self._ended.add(1, endpoint, code)

    def end(self, endpoint: str, receipt: Receipt) -> None:
        """Count a request's only ending."""
        self._ended.add(1, endpoint, receipt.outcome)
        if receipt.ttft_s is not None:
            self._ttft_s.observe(receipt.ttft_s, endpoint)
        if receipt.ttft_s is not None or receipt.outcome == "finished":
            for stage, seconds in receipt.stages_s.items():
                self._stage_s.observe(seconds, stage)
        if receipt.outcome == "finished":
            self._e2e_s.observe(receipt.e2e_s, endpoint)
        if receipt.num_prompt_tokens:
            self._prompt_tokens.add(receipt.num_prompt_tokens)
            self._cached_tokens.add(receipt.num_cached_tokens)
        if receipt.num_output_tokens:
            self._output_tokens.add(receipt.num_output_tokens)
        if receipt.num_items:
            self._count_media(receipt)

    def _count_media(self, receipt: Receipt) -> None:
        self._items.add(receipt.num_items)
        self._prompt_items.add(receipt.num_items if receipt.num_prompt_tokens else 0)
        self._visual_tokens.add(receipt.num_visual_tokens)
        self._cached_embeddings.add(receipt.num_cached_embeddings)

    def traced(self, outcome: str, count: int) -> None:
        """Count what became of requests' traces."""
        self._traces.add(count, outcome)

    def media(self, spans: Iterable[Span], media: Sequence[tuple[str, int] | None]) -> None:
        """Count what a request's media took. `media` are their formats and pixels, in the request's order.

        None stands for what was no medium of a known format.
        """
        for span in spans:
            if span.stage not in _MEDIA_STAGES or span.item is None or span.item >= len(media):
                continue
            medium = media[span.item]
            if medium is not None:
                kind, num_pixels = medium
                size = next(name for name, most in _SIZES if num_pixels <= most)
                self._media_s.observe(span.end_s - span.start_s, span.stage, kind, size)

    def totals(self) -> dict[str, float]:
        """The counters, without their prefix and summed over labels."""
        return {one.name.removeprefix(_PREFIX): sum(one.counts.values()) for one in self._counters}

    def outcomes(self) -> dict[str, float]:
        """Requests that ended, by outcome."""
        found: dict[str, float] = {}
        for (_, outcome), count in self._ended.counts.items():
            found[outcome] = found.get(outcome, 0.0) + count
        return found

    def _counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counted:
        counter = Counted(_PREFIX + name, meaning, labels)
        self.registry.register(counter)
        self._counters.append(counter)
        return counter

    def _histogram(self, name: str, meaning: str, labels: Sequence[str]) -> Timed:
        histogram = Timed(_PREFIX + name, meaning, labels, _LATENCY_S)
        self.registry.register(histogram)
        return histogram


class _Levels(Collector):
    """Reads levels when they are scraped, so that nothing is kept up to date in between."""

    def __init__(self, levels: Levels, worker_levels: Levels, worker_totals: Levels) -> None:
        self._levels = levels
        self._worker_levels = worker_levels
        self._worker_totals = worker_totals

    def collect(self) -> Iterator[Metric]:
        for name, value in self._levels().items():
            yield GaugeMetricFamily(f"chiasm_{name}", _meaning(name), value=value)
        for name, value in self._worker_levels().items():
            yield GaugeMetricFamily(f"chiasm_worker_{name}", _meaning(name), value=value)
        totals = self._worker_totals()
        for name, value in totals.items():
            if not name.startswith((EXPECTED, ACTUAL)):
                yield CounterMetricFamily(f"chiasm_worker_{name}", _meaning(name), value=value)
        yield from _by_stage(totals)


def _by_stage(totals: Mapping[str, float]) -> Iterator[Metric]:
    """Totals of stages, as one metric for all stages."""
    for beginning, (name, meaning) in _BY_STAGE.items():
        family = CounterMetricFamily(_PREFIX + name, meaning, labels=["stage"])
        for total, seconds in totals.items():
            if total.startswith(beginning):
                family.add_metric([total.removeprefix(beginning)], seconds)
        if family.samples:
            yield family


def _meaning(name: str) -> str:
    return LEVELS.get(name, f"{name.replace('_', ' ')}, counted by the engine.")
