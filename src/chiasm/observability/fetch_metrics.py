"""What came of looking for kept downloads, as a counter."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class FetchLookups(Collector):
    """Reads the counts when they are scraped. `lookups` gives them by outcome, all outcomes each time."""

    def __init__(self, lookups: Callable[[], Mapping[str, int]]) -> None:
        self._lookups = lookups

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = CounterMetricFamily(
            "chiasm_fetch_cache_lookups",
            "Downloads where some are kept: hit (its server was not asked), revalidated, changed or miss.",
            labels=["outcome"],
        )
        for outcome, count in self._lookups().items():
            family.add_metric([outcome], count)
        yield family
