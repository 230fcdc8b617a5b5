"""What a checked pooling request is: something that asks the worker and writes an answer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from chiasm.errors import InvalidRequestError, RequestError
from chiasm.protocol.openai.sampling import ChiasmOptions
from chiasm.protocol.pooling.fields import Heading, Texts
from chiasm.protocol.pooling.work import (
    PoolingInfo,
    PoolingTask,
    PoolInput,
    PoolOutput,
    PoolParams,
    PoolResponse,
    TextInput,
    TokensInput,
)

Pool = Callable[[PoolingTask, tuple[PoolInput, ...], PoolParams], Awaitable[PoolResponse]]
"""Asks the worker on behalf of one request."""
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

    async def run(self, pool: Pool) -> Write:
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


class TaskCall(msgspec.Struct, frozen=True, kw_only=True):
    """A `Call` that is one task over its inputs.

    Attributes:
        model: See `Call`.
        options: See `Call`.
        task: For the worker.
        inputs: For the worker.
        params: For the worker.
        place: Where input i stands in the body, as a JSON pointer.
        write: Makes the answer of the outputs.
    """

    model: str | None
    options: ChiasmOptions | None
    task: PoolingTask
    inputs: tuple[PoolInput, ...]
    params: PoolParams
    place: Callable[[int], str]
    write: Callable[[Sequence[PoolOutput], Heading], msgspec.Struct]

    async def run(self, pool: Pool) -> Write:
        """See `Call`."""
        try:
            response = await pool(self.task, self.inputs, self.params)
        except RequestError as error:
            if error.item is not None and error.param is None:
                error.param = self.place(error.item)
            raise
        write: Any = self.write  # a function in a field is not a method
        return lambda heading: write(response.outputs, heading)


def check_dimensions(dimensions: int | None, info: PoolingInfo, param: str) -> int | None:
    """Return what was asked for. Raises `InvalidRequestError` when it is more than the model's embeddings have."""
    if dimensions is not None and 0 < info.width < dimensions:
        raise InvalidRequestError(f"{dimensions} dimensions are more than the model's {info.width}", param=param)
    return dimensions


def inputs_of(texts: Texts, prompt: str | None = None) -> tuple[PoolInput, ...]:
    """Inputs in OpenAI's four forms. Raises `InvalidRequestError` when they are mixed or empty."""
    if isinstance(texts, str):
        return (TextInput(texts, prompt),)
    if all(isinstance(one, str) for one in texts):
        return tuple(TextInput(str(one), prompt) for one in texts)
    if all(isinstance(one, int) for one in texts):
        return (TokensInput(tuple(one for one in texts if isinstance(one, int))),)
    lists = [one for one in texts if isinstance(one, list)]
    if len(lists) != len(texts):
        raise InvalidRequestError("The input mixes texts and token ids", hint="Send one kind", param="/input")
    for index, ids in enumerate(lists):
        if not ids:
            raise InvalidRequestError("An input without tokens", param=f"/input/{index}")
    return tuple(TokensInput(tuple(ids)) for ids in lists)


def place_of_input(texts: Texts) -> Callable[[int], str]:
    """Pointers to inputs that `inputs_of` made."""
    is_one = isinstance(texts, str) or all(isinstance(one, int) for one in texts)
    return lambda item: "/input" if is_one else f"/input/{item}"
