"""Calls that a gateway makes of a server's workers: `--worker-extension-cls chiasm.engines.vllm.forgetting.Forgetting`.

vLLM clears its own caches by itself; what these clear are the embeddings that ChiasmECConnector offers or keeps.
"""

from vllm.distributed.ec_transfer import get_ec_transfer, has_ec_transfer

from chiasm.engines.vllm.ec_connector import ChiasmECConnector


class Forgetting:
    """A base that vLLM gives its workers; names start with `chiasm_` so that they meet no other."""

    def chiasm_forget(self) -> dict[str, int]:
        """Offer nothing more, and have the scheduler forget what it keeps with its next step."""
        connector = _connector()
        return {"num_offers": connector.forget()} if connector is not None else {}

    def chiasm_has_forgotten(self) -> dict[str, bool]:
        """Whether the scheduler has."""
        connector = _connector()
        return {"is_pending": connector.is_forgetting()} if connector is not None else {}


def _connector() -> ChiasmECConnector | None:
    found = get_ec_transfer() if has_ec_transfer() else None
    return found if isinstance(found, ChiasmECConnector) else None
