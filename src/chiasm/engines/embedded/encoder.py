"""The encode stage: prepared pictures in, published embeddings out. Runs on the engine's thread between steps."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from chiasm.connectors.base import EmbeddingConnector, checksum
from chiasm.engines.embedded.buffers import dtype_name, tensor_bytes
from chiasm.engines.embedded.families.base import Family, LoadedModel
from chiasm.engines.embedded.memory import is_out_of_memory
from chiasm.errors import ChiasmError, EngineStepError
from chiasm.media.prepare.base import PreparedImage
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata
from chiasm.scheduling.encode_budget import EncodeBudget
from chiasm.scheduling.encode_line import EncodeLine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoded:
    """A published embedding, held once for whoever asked, and when it was made (`time.perf_counter()`)."""

    handle: EmbeddingHandle
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class EncodeJob:
    """One picture to encode. `done` is called once on the engine's thread; it must neither block nor raise.

    `owner` is the id of the request that waits for it.
    """

    owner: str
    identity: str
    prepared: PreparedImage
    done: Callable[[Encoded | ChiasmError], None]
    cache_salt: str = ""

    @property
    def num_embeddings(self) -> int:
        """What comes of it."""
        return self.prepared.plan.num_embeddings


class Encoder:
    """Batches pictures of different requests within a budget, in the order of `EncodeLine`. Not thread-safe."""

    def __init__(
        self,
        family: Family,
        model: LoadedModel,
        connector: EmbeddingConnector,
        *,
        model_revision: str,
        budget: EncodeBudget,
    ) -> None:
        assert family.preparer is not None, "a model that takes pictures has a preparer"
        self._family = family
        self._model = model
        self._connector = connector
        self._model_revision = model_revision
        self._processor_revision = family.preparer.revision
        self._budget = budget
        self._jobs: EncodeLine[EncodeJob] = EncodeLine()
        self._paused_s = 0.0
        self.num_encoded = 0
        self.num_out_of_memory = 0

    @property
    def num_waiting(self) -> int:
        """Pictures not yet encoded."""
        return len(self._jobs)

    def add(self, job: EncodeJob) -> None:
        """Queue a picture."""
        self._jobs.add(job)

    def cancel(self, job: EncodeJob) -> None:
        """Drop a picture that has not been encoded; its `done` is not called."""
        self._jobs.remove(job)

    def paused(self, seconds: float) -> None:
        """So much of the batch under way went to other work."""
        self._paused_s += seconds

    def fail_all(self, error: ChiasmError) -> None:
        """End everything that waits."""
        while self._jobs:
            self._jobs.take(0)[0].done(error)

    def encode_some(self) -> None:
        """Encode one batch. When it fails, each picture is tried alone, so that a bad one fails only itself."""
        batch = self._jobs.take(self._budget.num_embeddings)
        if not batch:
            return
        results = self._encode(batch)
        if len(batch) > 1 and any(isinstance(result, ChiasmError) for result in results):
            results = [self._encode([job])[0] for job in batch]
        for job, result in zip(batch, results, strict=True):
            job.done(result)

    @torch.inference_mode()
    def _encode(self, batch: Sequence[EncodeJob]) -> list[Encoded | ChiasmError]:
        start_s = time.perf_counter()
        self._paused_s = 0.0
        try:
            tensors = self._family.encode(self._model, [job.prepared for job in batch])
            handles = [self._publish(job, tensor) for job, tensor in zip(batch, tensors, strict=True)]
        except ChiasmError as error:
            return [error] * len(batch)
        except Exception as error:
            logger.exception("Encoding failed")
            self.num_out_of_memory += is_out_of_memory(error)
            return [EngineStepError(f"The vision encoder failed: {type(error).__name__}")] * len(batch)
        self.num_encoded += len(batch)
        end_s = time.perf_counter()
        self._budget.see(sum(len(tensor) for tensor in tensors), end_s - start_s - self._paused_s)
        return [Encoded(handle, start_s, end_s) for handle in handles]

    def _publish(self, job: EncodeJob, tensor: torch.Tensor) -> EmbeddingHandle:
        plan = job.prepared.plan
        data = tensor_bytes(tensor)
        rows, width = tensor.shape
        metadata = EmbeddingMetadata(
            kind=plan.kind,
            identity=job.identity,
            num_embeddings=rows,
            shape=(rows, width),
            dtype=dtype_name(tensor.dtype),
            grid_thw=plan.grid_thw,
            merge_size=plan.merge_size,
            second_per_grid_s=plan.second_per_grid_s,
            model_revision=self._model_revision,
            processor_revision=self._processor_revision,
            checksum=checksum(data),
        )
        return self._connector.publish(metadata, data, job.cache_salt)
