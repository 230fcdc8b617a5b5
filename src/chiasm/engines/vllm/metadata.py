"""What the connector's two sides inside one vLLM server tell each other, by vLLM's own ways."""

from dataclasses import dataclass, field

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorMetadata, ECConnectorWorkerMetadata

from chiasm.engines.vllm.ec.verified_store import StoredEmbedding


@dataclass
class StepOrders(ECConnectorMetadata):  # type: ignore[misc]
    """To the workers, with a step.

    `loads`: copies for the encoder cache; `reloads`: those that replace what is there; `wanted`: identities whose
    embeddings must be on offer.
    """

    loads: dict[str, StoredEmbedding] = field(default_factory=dict)
    reloads: dict[str, StoredEmbedding] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)


@dataclass
class StepReport(ECConnectorWorkerMetadata):  # type: ignore[misc]
    """From the workers, after a step."""

    loaded: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def aggregate(self, other: "StepReport") -> "StepReport":
        """Join the reports of two workers; what failed in one has failed."""
        failed = self.failed | other.failed
        return StepReport((self.loaded | other.loaded) - failed, failed)
