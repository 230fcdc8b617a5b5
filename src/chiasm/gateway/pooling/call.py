"""What a checked pooling request is: something that asks the worker and writes an answer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from chiasm.errors import InvalidRequestError, MediaError, RequestError
from chiasm.gateway.pooling.contents import Fill
from chiasm.media.reference import MediaReference
from chiasm.protocol.media import MediaItem
from chiasm.protocol.openai.sampling import ChiasmOptions
from chiasm.protocol.pooling.fields import Heading, Texts
from chiasm.protocol.pooling.work import PoolingInfo, PoolingTask, PoolInput, PoolOutput, PoolParams, PoolResponse


class Services(Protocol):
    """What one request may ask for."""

    @property
    def request_id(self) -> str:
        """The server's id of the request."""
        ...

    async def pool(self, task: PoolingTask, inputs: tuple[PoolInput, ...], params: PoolParams) -> PoolResponse:
        """Ask the worker, when it is the request's turn."""
        ...

    async def collect(self, references: Sequence[MediaReference]) -> list[MediaItem]:
        """Fetch and check pictures. Raises `MediaError`, also where the model takes none."""
        ...

    async def collect_each(self, references: Sequence[MediaReference]) -> list[MediaItem | MediaError]:
        """As `collect`, but what is wrong with one picture ends no other."""
        ...


Write = Callable[[Heading], msgspec.Struct]
"""Makes the answer's body."""


class Call(Protocol):
    """A checked request. Whatever it holds lives as long as the request."""

    @property
    def model(self) -> str | None:
        """The model that was named."""
        ...

    @property
    def options(self) -> ChiasmOptions | None:
        """Chiasm's own fields."""
        ...

    @property
    def references(self) -> Sequence[MediaReference]:
        """Pictures that are known before it runs."""
        ...

    def restored(self, references: Sequence[MediaReference]) -> "Call":
        """The same, with its references' payloads where they belong."""
        ...

    async def run(self, services: Services) -> Write:
        """Do the work. Raises `RequestError` with the place in the body."""
        ...


class Dialect(Protocol):
    """One of the pooling APIs."""

    @property
    def name(self) -> str:
        """Label in metrics and logs."""
        ...

    @property
    def id_prefix(self) -> str:
        """What response ids of this API start with."""
        ...

    def call(self, body: bytes, info: PoolingInfo) -> Call:
        """Check a body against what the model does. Raises `RequestError`."""
        ...


class TaskCall(msgspec.Struct, kw_only=True):
    """A `Call` that is one task over its inputs.

    Attributes:
        model: See `Call`.
        options: See `Call`.
        references: See `Call`; let go of when the pictures are there.
        task: For the worker.
        inputs: Makes those for the worker.
        params: For the worker.
        place: Where input i stands in the body, as a JSON pointer.
        write: Makes the answer of the outputs.
    """

    model: str | None
    options: ChiasmOptions | None
    references: Sequence[MediaReference] = ()
    task: PoolingTask
    inputs: Fill
    params: PoolParams
    place: Callable[[int], str]
    write: Callable[[Sequence[PoolOutput], Heading], msgspec.Struct]

    def restored(self, references: Sequence[MediaReference]) -> "TaskCall":
        """See `Call`."""
        return msgspec.structs.replace(self, references=references)

    async def run(self, services: Services) -> Write:
        """See `Call`."""
        references, self.references = self.references, ()
        fill: Any = self.inputs  # a function in a field is not a method
        inputs: tuple[PoolInput, ...] = fill(await services.collect(references) if references else ())
        del references
        try:
            response = await services.pool(self.task, inputs, self.params)
        except RequestError as error:
            if error.item is not None and error.param is None:
                error.param = self.place(error.item)
            raise
        write: Any = self.write
        return lambda heading: write(response.outputs, heading)


def check_dimensions(dimensions: int | None, info: PoolingInfo, param: str) -> int | None:
    """Return what was asked for. Raises `InvalidRequestError` when it is more than the model's embeddings have."""
    if dimensions is not None and 0 < info.width < dimensions:
        raise InvalidRequestError(f"{dimensions} dimensions are more than the model's {info.width}", param=param)
    return dimensions


def place_of_input(texts: Texts | None) -> Callable[[int], str]:
    """Pointers to inputs that `Contents.of_texts` made, or to the only message where there is no input."""
    if texts is None:
        return lambda item: f"/messages/{item}"
    is_one = isinstance(texts, str) or all(isinstance(one, int) for one in texts)
    return lambda item: "/input" if is_one else f"/input/{item}"
