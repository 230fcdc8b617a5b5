"""`/pooling` with a processor: raw data in, the processor's answer out."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from chiasm.errors import ChiasmError, PluginError
from chiasm.gateway.pooling.call import Services, Write
from chiasm.media.reference import MediaReference
from chiasm.observability.logs import LOGGER
from chiasm.pooling.io.base import IOProcessor, Read, read, run
from chiasm.protocol.openai.sampling import ChiasmOptions
from chiasm.protocol.pooling.fields import Heading
from chiasm.protocol.pooling.tasks import PluginBody, PoolingTaskRequest
from chiasm.protocol.pooling.work import PoolingTask, PoolInput, PoolOutput, PoolParams


class ProcessorCall:
    """A `Call` that a processor serves. The request's state lives in this call's run and nowhere else."""

    def __init__(self, request: PoolingTaskRequest, processor: IOProcessor) -> None:
        self._request = request
        self._processor = processor
        self._read: Read | None = None

    @property
    def model(self) -> str | None:
        """See `Call`."""
        return self._request.model

    @property
    def options(self) -> ChiasmOptions | None:
        """See `Call`."""
        return self._request.chiasm

    @property
    def references(self) -> Sequence[MediaReference]:
        """See `Call`; empty where the processor may look into its pictures' URLs, or finds a fault in the data.

        Asked for only when large payloads were cut out of the body: then this decides whether they have to come back.
        """
        if self._processor.passes_urls_on:
            with suppress(ChiasmError):  # what is wrong with the data is said about all of it
                self._read = read(self._processor, self._request.data)
        return () if self._read is None else self._read.references

    def restored(self, references: Sequence[MediaReference]) -> "ProcessorCall":
        """See `Call`."""
        assert self._read is not None, "without references nothing is restored"
        self._read = self._read._replace(references=references)
        return self

    async def run(self, services: Services) -> Write:
        """See `Call`."""

        async def engine(task: PoolingTask, inputs: tuple[PoolInput, ...], params: PoolParams) -> Sequence[PoolOutput]:
            return (await services.pool(task, inputs, params)).outputs

        request, processor = self._request, self._processor
        try:
            answer = await run(
                processor,
                self._taken() or request.data,
                request.params(),
                services.request_id,
                engine,
                asyncio.to_thread,
                services.collect_each,
            )
        except PluginError as error:
            LOGGER.error("The processor %s failed", processor.name, exc_info=error.__cause__)
            raise
        except ChiasmError as error:
            error.param = error.param or "/data"
            raise

        def write(heading: Heading) -> PluginBody:
            return PluginBody(
                request_id=heading.id, created_at=heading.created, model=heading.model, dtype=heading.dtype, data=answer
            )

        return write

    def _taken(self) -> Read | None:
        """What was read already, which is then the run's alone: it holds the whole body."""
        taken, self._read = self._read, None
        return taken
