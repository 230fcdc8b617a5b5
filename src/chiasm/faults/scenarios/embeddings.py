"""Embeddings on their way: lost, late, cut, changed, twice, refused."""

from chiasm.faults.scenarios.base import Scenario, tampered

_SHORT_S = 0.1
_FOREVER_S = 1e6
_ALWAYS = 1000

SCENARIOS = (
    Scenario(
        name="embedding-dropped",
        group="embedding",
        what="the encoder answers, and what it offers is gone",
        make=tampered("drop"),
        min_failures=1,
    ),
    Scenario(
        name="embedding-delayed",
        group="embedding",
        what="the embedding arrives late, within transfer.timeout_s",
        make=tampered("delay", delay_s=_SHORT_S),
    ),
    Scenario(
        name="embedding-late",
        group="embedding",
        what="the embedding does not arrive within transfer.timeout_s",
        make=tampered("delay", delay_s=_FOREVER_S),
        min_failures=1,
    ),
    Scenario(
        name="embedding-never",
        group="embedding",
        what="metadata arrives from every encoder, no embedding ever does",
        make=tampered("delay", delay_s=_FOREVER_S, times=_ALWAYS),
        min_failures=1,
    ),
    Scenario(
        name="embedding-truncated",
        group="embedding",
        what="the last byte is missing",
        make=tampered("truncate"),
        min_failures=1,
    ),
    Scenario(
        name="embedding-corrupted",
        group="embedding",
        what="one bit is wrong",
        make=tampered("corrupt"),
        min_failures=1,
    ),
    Scenario(
        name="embedding-corrupted-of-two",
        group="embedding",
        what="one bit is wrong in one of two pictures",
        make=tampered("corrupt"),
        min_failures=1,
        pictures=2,
    ),
    Scenario(
        name="embedding-duplicate",
        group="embedding",
        what="the embedding is offered twice",
        make=tampered("duplicate"),
        max_failures=0,
    ),
    Scenario(
        name="connector-full",
        group="embedding",
        what="one encoder's quota is used up",
        make=tampered("full"),
        min_failures=1,
    ),
    Scenario(
        name="connectors-full",
        group="embedding",
        what="every encoder's quota is used up",
        make=tampered("full", times=_ALWAYS),
        min_failures=1,
    ),
    Scenario(
        name="embedding-never-nor-local",
        group="embedding",
        what="no embedding ever arrives, and routing.local_encode is 'never'",
        make=tampered("drop", times=_ALWAYS),
        topologies=("e-pd", "e-p-d"),
        local_encode="never",
        outcome="embedding_unavailable",
        min_failures=2,
    ),
    Scenario(
        name="connectors-full-nor-local",
        group="embedding",
        what="every encoder's quota is used up, and routing.local_encode is 'never'",
        make=tampered("full", times=_ALWAYS),
        topologies=("e-pd",),
        local_encode="never",
        outcome="overloaded",
        min_failures=2,
    ),
)
