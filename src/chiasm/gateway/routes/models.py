"""`/v1/models`: what is served here."""

from starlette.requests import Request
from starlette.responses import Response

from chiasm.errors import ModelNotFoundError
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
        return json_response(ModelList(data=[self._card()]))

    async def entry(self, request: Request) -> Response:
        """`GET /v1/models/{id}`. Raises `ModelNotFoundError`."""
        card = self._card()
        if request.path_params["id"] != card.id:
            raise ModelNotFoundError("This model is not served here", hint=f"Use '{card.id}'")
        return json_response(card)

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
