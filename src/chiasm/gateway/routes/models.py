"""`/v1/models`: what is served here."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm.errors import ModelNotFoundError
from chiasm.gateway.adapters import LoadedAdapter
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.protocol.openai.models import ModelCard, ModelList
from chiasm.protocol.pooling.work import PoolingWorker


class ModelRoutes:
    """The list and each entry."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, request: Request) -> Response:
        """`GET /v1/models`."""
        return json_response(ModelList(data=[*self._cards()]))

    async def entry(self, request: Request) -> Response:
        """`GET /v1/models/{id}`. Raises `ModelNotFoundError`."""
        cards = self._cards()
        card = next((one for one in cards if one.id == request.path_params["id"]), None)
        if card is None:
            raise ModelNotFoundError("This model is not served here", hint=f"Use '{cards[0].id}'")
        return json_response(card)

    def _cards(self) -> Sequence[ModelCard]:
        """The model, then its adapters."""
        base = self._card()
        return [base, *(_adapted(base, one) for one in self._gateway.adapters.all())]

    def _card(self) -> ModelCard:
        worker = self._gateway.worker
        info = worker.info
        return ModelCard(
            id=info.model,
            created=int(info.started_at_unix_s),
            family=info.family,
            max_model_len=info.max_model_tokens,
            takes_images=info.takes_images,
            dtype=info.dtype,
            device=info.device,
            model_revision=info.model_revision,
            processor_revision=info.processor_revision,
            tasks=worker.pooling.tasks if isinstance(worker, PoolingWorker) else ("generate",),
        )


def _adapted(base: ModelCard, adapter: LoadedAdapter) -> ModelCard:
    ref = adapter.info.ref
    return msgspec.structs.replace(
        base,
        id=ref.name,
        parent=base.id,
        created=int(adapter.loaded_at_unix_s),
        model_revision=f"{base.model_revision}+{ref.revision}",
    )
