"""A gateway with relays between it and its servers, where a call can be made to go wrong."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.vllm_fronts import Fault, faults
from tests.vllm.crews import workers_file
from tests.vllm.gateways import QUESTION, Gateway, gateway
from tests.vllm.pictures import new_picture, raw
from tests.vllm.relays import Change, Relay, relay, unchanged

FAULTS = {name: fault for name, fault in faults(None).items() if name != "nothing wrong"}
OF_ENCODERS = [name for name, fault in FAULTS.items() if fault.consumer is unchanged]
CODES = {"embedding_unavailable", "layout_mismatch", "engine_dead", "invalid_request"}
"""What requests end with when it always goes wrong."""


class Front(NamedTuple):
    """A gateway, and what is between it and its servers."""

    gateway: Gateway
    encoders: list[Relay]
    consumer: Relay

    def set(self, fault: Fault, change: Callable[[Change], Change] = lambda change: change) -> None:
        """Have it happen from now on; all encoders share what has become of it."""
        asked, answered = change(fault.encoder), change(fault.encoded)
        for encoder in self.encoders:
            encoder.asked, encoder.answered = asked, answered
        self.consumer.asked = change(fault.consumer)


@contextmanager
def front(folder: Path, encoders: Sequence[str], consumer: str, *settings: str) -> Iterator[Front]:
    """Over a consumer that never encodes; servers are named by their addresses."""
    with ExitStack() as closing:
        relays = [closing.enter_context(relay(one)) for one in encoders]
        last = closing.enter_context(relay(consumer))
        listed = {f"e{number}": (one.url, '["encode"]') for number, one in enumerate(relays)}
        listed["pd"] = (last.url, '["prefill", "decode"]')
        own = ("engine.kind=vllm", "routing.topology=e-pd", "routing.local_encode=never", *settings)
        yield Front(closing.enter_context(gateway(*own, workers_file(folder, listed))), relays, last)


@contextmanager
def neighbour_of(made: Front) -> Iterator[None]:
    """Somebody else's stream, which must come to its end as if nothing had happened in the block."""
    events: list[dict[str, list[dict[str, object]]]] = []
    asked, fields = ("Tell me a story.",), {"max_tokens": 60, "min_tokens": 60}
    thread = threading.Thread(target=lambda: events.extend(made.gateway.stream(asked, **fields)))
    thread.start()
    yield
    thread.join(120)
    assert "length" in [choice["finish_reason"] for event in events for choice in event.get("choices", [])]


def asked_about(side: int = 224) -> tuple[str, str]:
    """A question about a picture that no cache has; the faults are for pictures of 14 x 14 patches."""
    return raw(new_picture(side))["image_url"]["url"], QUESTION
