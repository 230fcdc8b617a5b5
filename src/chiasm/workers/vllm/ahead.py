"""Reading a request before vLLM does, away from its event loop; what is read waits in the task's context."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass

from chiasm.errors import InvalidRequestError, UnsupportedMediaError
from chiasm.pooling.io.base import IOProcessor, guarded
from chiasm.workers.vllm.pictures import NO_PICTURES, PictureRoom
from chiasm.workers.vllm.requests import RequestUnderWay, ServedModel

READ_AHEAD: ContextVar[RequestUnderWay | None] = ContextVar("chiasm_read_ahead", default=None)
"""The request of this task, where the middleware has read it."""


@dataclass(frozen=True)
class Serving:
    """The processor of this process's server, and its model."""

    processor: IOProcessor
    served: ServedModel


_SERVING: list[Serving] = []


def announce(serving: Serving) -> None:
    """Let the middleware know what is served; vLLM makes it before the processor, and apart from it."""
    _SERVING[:] = [serving]


def serving() -> Serving | None:
    """What has been announced."""
    return _SERVING[-1] if _SERVING else None


async def read_ahead(serving: Serving, data: object, room: PictureRoom, deadline_s: float) -> RequestUnderWay:
    """Do everything up to the tokens on threads, pictures included. The caller bounds the wait.

    Raises:
        RequestError: The processor, the media room or the tokenizer refuses it.
        PluginError: The processor failed.
    """
    processor, served = serving.processor, serving.served
    parsed = await asyncio.to_thread(guarded, processor, processor.parse, data)
    references = guarded(processor, processor.media, parsed)
    if references and served.preparer is None:
        raise UnsupportedMediaError(f"{served.name} takes no pictures", item=0)
    media = await room.collect(references, deadline_s) if references else ()
    request = await asyncio.to_thread(RequestUnderWay, processor, served, parsed, "", media)
    pictures = NO_PICTURES
    if items := request.items:
        assert served.preparer is not None, "the request has been checked"
        pictures = await room.prepare(items, served.preparer, is_tolerant=request.is_tolerant)
    await asyncio.to_thread(request.read, pictures)
    if not request.inputs:  # of no picture anything is left; the processor says so
        await asyncio.to_thread(request.answer, [])
        raise InvalidRequestError("There is nothing to compute", hint="Send at least one item that can be used")
    return request
