"""Which path leads to which pooling API, and what its bodies are."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from chiasm.gateway.pooling.embeddings import CohereEmbedDialect, EmbeddingsDialect
from chiasm.gateway.pooling.exchange import PoolingEndpoint
from chiasm.gateway.pooling.scores import RerankDialect, ScoreDialect
from chiasm.gateway.pooling.tasks import ClassifyDialect, PoolingDialect
from chiasm.gateway.state import Gateway
from chiasm.pooling.io.registry import make_processors
from chiasm.protocol.pooling.embeddings import CohereEmbedBody, CohereEmbedRequest, EmbeddingList, EmbeddingRequest
from chiasm.protocol.pooling.scoring import RerankBody, RerankRequest, ScoreList, ScoreRequest
from chiasm.protocol.pooling.tasks import ClassificationList, ClassifyRequest, PoolingList, PoolingTaskRequest
from chiasm.protocol.pooling.work import PoolingWorker
from chiasm.settings import PoolingSettings

if TYPE_CHECKING:
    from chiasm.gateway.pooling.call import Dialect

BODIES: Mapping[str, tuple[type, type]] = {
    "/v1/embeddings": (EmbeddingRequest, EmbeddingList),
    "/v2/embed": (CohereEmbedRequest, CohereEmbedBody),
    "/score": (ScoreRequest, ScoreList),
    "/v1/score": (ScoreRequest, ScoreList),
    "/rerank": (RerankRequest, RerankBody),
    "/v1/rerank": (RerankRequest, RerankBody),
    "/v2/rerank": (RerankRequest, RerankBody),
    "/classify": (ClassifyRequest, ClassificationList),
    "/pooling": (PoolingTaskRequest, PoolingList),
}
"""Path -> (request, answer), for the API's schema."""


def pooling_app_endpoints(gateway: Gateway, settings: PoolingSettings) -> dict[str, PoolingEndpoint]:
    """An application per path. Raises `EngineStartError` for processors that do not exist or do not fit the model."""
    worker = gateway.worker
    processors = make_processors(settings.io_processors, worker.pooling) if isinstance(worker, PoolingWorker) else {}
    score, rerank = ScoreDialect(), RerankDialect(returns_documents=True)
    dialects: dict[str, Dialect] = {
        "/v1/embeddings": EmbeddingsDialect(),
        "/v2/embed": CohereEmbedDialect(),
        "/score": score,
        "/v1/score": score,
        "/rerank": rerank,
        "/v1/rerank": rerank,
        "/v2/rerank": RerankDialect(returns_documents=False),
        "/classify": ClassifyDialect(),
        "/pooling": PoolingDialect(processors),
    }
    assert set(dialects) == set(BODIES), "a path without a schema, or the other way round"
    return {path: PoolingEndpoint(gateway, dialect, settings.max_inputs) for path, dialect in dialects.items()}
