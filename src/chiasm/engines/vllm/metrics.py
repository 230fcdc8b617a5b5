"""The connector's counts in vLLM's own log and on its own `/metrics`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_COUNTERS = {
    "published": ("chiasm_ec_published", "Embeddings offered by this encoder."),
    "published_bytes": ("chiasm_ec_published_bytes", "Bytes of embeddings offered by this encoder."),
    "publish_seconds": ("chiasm_ec_publish_seconds", "Time the encoder's step spent offering embeddings."),
    "refused_offers": ("chiasm_ec_refused_offers", "Embeddings that found no room on offer."),
    "evicted": ("chiasm_ec_evicted", "Embeddings dropped to make room for others."),
    "pulls": ("chiasm_ec_pulls", "Embeddings taken from an encoder and checked."),
    "pulled_bytes": ("chiasm_ec_pulled_bytes", "Bytes taken from encoders and checked."),
    "pull_seconds": ("chiasm_ec_pull_seconds", "Time spent taking and checking, over all threads."),
    "wait_seconds": ("chiasm_ec_wait_seconds", "Time requests waited for their embeddings."),
    "local_hits": ("chiasm_ec_local_hits", "Items whose checked embedding was still there."),
}
_REASON_COUNTERS = {
    "refused": ("chiasm_ec_refused_requests", "Requests that failed alone for want of an embedding."),
    "local_encodes": ("chiasm_ec_local_encodes", "Items encoded here since no embedding could be had."),
}


class EcStats(ECConnectorStats):  # type: ignore[misc]
    """Counts since the last step."""

    data: dict[str, Any]

    def reset(self) -> None:
        """Begin anew."""
        self.data = {}

    def aggregate(self, other: "EcStats") -> "EcStats":
        """Add another's counts to these."""
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0.0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """What vLLM's log line shows."""
        return {name: round(value, 6) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not any(self.data.values())


class EcPrometheus(ECConnectorPromMetrics):  # type: ignore[misc]
    """The counters, one of each per engine; lives in the API server."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        make = metric_types[Counter]
        self._counters = {key: make(name, text, labelnames) for key, (name, text) in _COUNTERS.items()}
        self._by_reason = {
            key: make(name, text, [*labelnames, "reason"]) for key, (name, text) in _REASON_COUNTERS.items()
        }
        for values in per_engine_labelvalues.values():
            for counter in self._counters.values():
                counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one engine's counts."""
        values = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            key, _, reason = name.partition(":")
            if reason and key in self._by_reason:
                self._by_reason[key].labels(*values, reason).inc(value)
            elif key in self._counters:
                self._counters[key].labels(*values).inc(value)
