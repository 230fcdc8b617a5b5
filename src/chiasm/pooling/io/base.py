"""What a processor is, and the life of the state that its requests need.

A processor has no state of its own that a request changes. What `pre` must tell `post` goes into the request's context,
which is made for one request and dropped with it on every way out: there is no table of requests that could keep it.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import msgspec

from chiasm.errors import ChiasmError, MediaError, PluginError, UnsupportedFeatureError
from chiasm.media.reference import MediaReference
from chiasm.protocol.media import MediaItem
from chiasm.protocol.openai.faults import request_fault
from chiasm.protocol.pooling.work import PoolingInfo, PoolingTask, PoolInput, PoolOutput, PoolParams

Kind = TypeVar("Kind", bound=msgspec.Struct)


class RequestContext:
    """Belongs to one request. `state` is whatever `pre` leaves for `post`.

    `media` has for each picture that `IOProcessor.media` named the checked item, or what is wrong with it.
    """

    __slots__ = ("__weakref__", "media", "request_id", "state")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.media: Sequence[MediaItem | MediaError] = ()
        self.state: Any = None


class Read(NamedTuple):
    """What `parse` and `media` made of a request's data."""

    request: Any
    references: Sequence[MediaReference]


class ProcessorWork(msgspec.Struct, frozen=True):
    """What the engine is asked for. Outputs come back in the order of `inputs`; equal ones are computed once."""

    task: PoolingTask
    inputs: tuple[PoolInput, ...]


class IOProcessor(ABC):
    """Turns a request's data into inputs and the engine's outputs into the answer.

    Methods are called for several requests at once, each request's in order; `parse`, `pre` and `post` on worker
    threads (but see `passes_urls_on`). They raise `RequestError` for what the caller should mend; anything else ends
    the request as a fault of the processor.
    """

    name: ClassVar[str]
    passes_urls_on: ClassVar[bool] = False
    """Whether pictures' URLs go from `parse` to `media` as they are, and nowhere else.

    Then megabytes of base64 stay out of what `parse` gets: a short mark stands for the payload of a data URL. `parse`
    and `media` may be called on the event loop, and a second time with all of the data.
    """

    def __init__(self, info: PoolingInfo) -> None:
        """Look at the model. Raises `UnsupportedModelError` when it is none for this processor."""
        self.info = info

    @abstractmethod
    def parse(self, data: object) -> Any:
        """Check the request's `data`. Raises `InvalidRequestError`."""

    def merge_params(self, params: PoolParams) -> PoolParams:
        """Add what this processor wants to what the caller asked for."""
        return params

    def media(self, request: Any) -> Sequence[MediaReference]:
        """Name the pictures that what `parse` returned asks about: they are fetched and checked before `pre`."""
        return ()

    @abstractmethod
    def pre(self, request: Any, context: RequestContext) -> ProcessorWork:
        """Make the engine's inputs of what `parse` returned."""

    @abstractmethod
    def post(self, outputs: Sequence[PoolOutput], context: RequestContext) -> object:
        """Make the answer, of plain types that JSON has."""


Engine = Callable[[PoolingTask, tuple[PoolInput, ...], PoolParams], Awaitable[Sequence[PoolOutput]]]
"""Computes inputs for one request."""
Collect = Callable[[Sequence[MediaReference]], Awaitable[Sequence[MediaItem | MediaError]]]
"""Fetches and checks pictures for one request; one that cannot be used comes back as its error."""
OnThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments away from the event loop; `asyncio.to_thread`."""


async def run(
    processor: IOProcessor,
    data: object,
    params: PoolParams,
    request_id: str,
    engine: Engine,
    on_thread: OnThread,
    collect: Collect | None = None,
) -> object:
    """Serve one request from raw data to the answer. Without `collect`, processors that name pictures are refused.

    `data` may also be what `read` made of it already.

    Raises:
        RequestError: The processor or the engine refuses it.
        PluginError: The processor failed.
    """
    context = RequestContext(request_id)
    try:
        request, references = data if isinstance(data, Read) else await on_thread(read, processor, data)
        data = None
        merged = guarded(processor, processor.merge_params, params)
        if references:
            if collect is None:
                raise UnsupportedFeatureError(f"The processor '{processor.name}' cannot have pictures fetched here")
            context.media = await collect(references)
            references = ()
        work = await on_thread(guarded, processor, processor.pre, request, context)
        outputs = await engine(work.task, work.inputs, merged)
        return await on_thread(guarded, processor, processor.post, outputs, context)
    finally:
        context.state, context.media = None, ()


def read(processor: IOProcessor, data: object) -> Read:
    """Check a request's data and name its pictures. Raises as `guarded` does."""
    request = guarded(processor, processor.parse, data)
    return Read(request, guarded(processor, processor.media, request))


def guarded(processor: IOProcessor, step: Callable[..., Any], *arguments: object) -> Any:
    """Call one of a processor's methods. Raises what it raises of Chiasm's errors, `PluginError` for anything else."""
    try:
        return step(*arguments)
    except ChiasmError:
        raise
    except Exception as error:
        raise PluginError(
            f"The processor '{processor.name}' failed in {step.__name__}", hint="The server's log has the details"
        ) from error


def checked(data: object, kind: type[Kind]) -> Kind:
    """Convert `data` to a struct type, with the place in the body in errors. Raises `InvalidRequestError`."""
    try:
        return cast("Kind", msgspec.convert({"data": data}, _body_with(kind)).data)
    except msgspec.ValidationError as error:
        raise request_fault(error, known=kind.__struct_fields__, kind=_body_with(kind)) from error


@cache
def _body_with(kind: type[msgspec.Struct]) -> Any:
    """A body whose `data` is of this type, so that pointers begin at the body."""
    return msgspec.defstruct("Body", [("data", kind)])
