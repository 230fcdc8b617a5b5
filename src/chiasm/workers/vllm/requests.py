"""A processor's request around an engine that computes rows of tokens and knows nothing of processors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chiasm.engines.pooling.batch import Tokens
from chiasm.engines.pooling.runner import PoolingInput
from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.pooling.io.base import IOProcessor, ProcessorWork, RequestContext, guarded
from chiasm.pooling.model_files import PoolingModel
from chiasm.protocol.pooling.work import PoolingInfo, PoolParams, PoolRequest
from chiasm.workers.pooling.checks import check_request
from chiasm.workers.pooling.tasks import Reader

Array = NDArray[np.float32]


class InputTokens(list[int]):
    """Token ids of one input that lead back to the request they belong to.

    The engine's server hands the list itself from the prompt to the output, so that a request's state is owned by what
    is under way for it, and by nothing else: no table could keep it, and equal request ids cannot mix it up.
    """

    __slots__ = ("place", "request")

    def __init__(self, ids: Sequence[int], request: "RequestUnderWay", place: int) -> None:
        super().__init__(ids)
        self.request = request
        self.place = place


@dataclass(frozen=True)
class ServedModel:
    """What a processor's requests need of the model."""

    name: str
    model: PoolingModel
    reader: Reader
    info: PoolingInfo


class RequestUnderWay:
    """One request between a processor's `pre` and its `post`.

    `inputs` are what the engine computes, equal ones once; they hold the request, not the other way round.
    """

    def __init__(self, processor: IOProcessor, served: ServedModel, parsed: object, request_id: str) -> None:
        """Run `pre` and tokenize.

        Raises:
            RequestError: The processor or the tokenizer refuses it.
            PluginError: The processor failed.
        """
        self._processor = processor
        self._context = RequestContext(request_id)
        if guarded(processor, processor.media, parsed):
            raise UnsupportedFeatureError(f"The processor '{processor.name}' cannot have pictures fetched inside vLLM")
        params: PoolParams = guarded(processor, processor.merge_params, PoolParams())
        work: ProcessorWork = guarded(processor, processor.pre, parsed, self._context)
        if not work.inputs:
            raise InvalidRequestError("There is nothing to compute", hint="Send at least one item")
        request = PoolRequest(request_id=request_id, task=work.task, inputs=work.inputs, params=params)
        check_request(request, served.info, served.name)
        self._reading = served.reader.read(request, {}, {})

    @property
    def inputs(self) -> Sequence[PoolingInput]:
        """What the engine computes a row, or rows, of."""
        return self._reading.inputs

    def tokens(self) -> list[InputTokens]:
        """The inputs' token ids. Each list holds this request alive."""
        found = []
        for place, one in enumerate(self.inputs):
            assert isinstance(one.content, Tokens), "pictures have been refused"
            found.append(InputTokens(one.content.ids, self, place))
        return found

    def answer(self, rows: Sequence[Array]) -> object:
        """Finish the rows in float32 and run `post`. Raises `RequestError` or `PluginError`."""
        return guarded(self._processor, self._processor.post, self._reading.outputs(rows), self._context)


def second_text_at(one: PoolingInput) -> int | None:
    """Where the second text of a pair begins, for models that tell the texts of a pair apart; None without one."""
    kinds = one.content.type_ids if isinstance(one.content, Tokens) else None
    return kinds.index(1) if kinds and 1 in kinds else None
