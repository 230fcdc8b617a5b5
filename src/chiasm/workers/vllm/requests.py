"""A processor's request around an engine that computes rows of tokens and knows nothing of processors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chiasm.engines.pooling.batch import Tokens
from chiasm.engines.pooling.dual import RankedPicture
from chiasm.engines.pooling.runner import PoolingInput
from chiasm.errors import InvalidRequestError, MediaError, UnsupportedFeatureError
from chiasm.media.prepare.base import ImagePreparer
from chiasm.pooling.io.base import IOProcessor, ProcessorWork, RequestContext, guarded
from chiasm.pooling.model_files import PoolingModel
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import PoolingInfo, PoolParams, PoolRequest, media_of
from chiasm.workers.pooling.checks import check_request
from chiasm.workers.pooling.tasks import Reader
from chiasm.workers.vllm.pictures import NO_PICTURES, PreparedPictures

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
    """What a processor's requests need of the model. `preparer` is for pictures, where it takes any."""

    name: str
    model: PoolingModel
    reader: Reader
    info: PoolingInfo
    preparer: ImagePreparer | None = None


class RequestUnderWay:
    """One request between a processor's `pre` and its `post`: made, then `read`, then `answer`ed.

    `inputs` are what the engine computes, equal ones once; they hold the request, not the other way round.
    """

    def __init__(
        self,
        processor: IOProcessor,
        served: ServedModel,
        parsed: object,
        request_id: str,
        media: Sequence[MediaItem | MediaError] = (),
    ) -> None:
        """Run `pre`. `media` has what the processor's own `media` named.

        Raises:
            RequestError: The processor refuses it, or it is none for the model.
            PluginError: The processor failed.
        """
        self._processor = processor
        self._served = served
        self._context = RequestContext(request_id)
        self._context.media = media
        if not media and guarded(processor, processor.media, parsed):
            raise UnsupportedFeatureError(
                f"The processor '{processor.name}' cannot have pictures fetched inside vLLM as it was started",
                hint="Start vLLM with --middleware chiasm.workers.vllm.middleware.ProcessorMiddleware",
            )
        params: PoolParams = guarded(processor, processor.merge_params, PoolParams())
        work: ProcessorWork = guarded(processor, processor.pre, parsed, self._context)
        if not work.inputs:
            raise InvalidRequestError("There is nothing to compute", hint="Send at least one item")
        self._request = PoolRequest(request_id=request_id, task=work.task, inputs=work.inputs, params=params)
        check_request(self._request, served.info, served.name)

    @property
    def items(self) -> list[MediaItem]:
        """Pictures of all inputs, in order."""
        return [item for one in self._request.inputs for item in media_of(one)]

    @property
    def is_tolerant(self) -> bool:
        """Whether pictures that cannot be used are reported to `post`."""
        return self._request.params.reports_failures

    def read(self, pictures: PreparedPictures = NO_PICTURES) -> "RequestUnderWay":
        """Tokenize, and make the arrays that the model reads. Raises `RequestError`."""
        self._arrays = {identity: one.pixel_values() for identity, one in pictures.prepared.items()}
        self._reading = self._served.reader.read(self._request, pictures.features(), pictures.failures)
        return self

    @property
    def inputs(self) -> Sequence[PoolingInput]:
        """What the engine computes a row, or rows, of."""
        return self._reading.inputs

    def tokens(self) -> list[InputTokens]:
        """The inputs' token ids. Each list holds this request alive."""
        return [InputTokens(tokens_of(one).ids, self, place) for place, one in enumerate(self.inputs)]

    def picture(self, place: int) -> tuple[str, NDArray[np.float32]] | None:
        """The picture that an input goes with: its identity, and the array that the model reads."""
        content = self.inputs[place].content
        if not isinstance(content, RankedPicture):
            return None
        identity = content.feature.identity
        return identity, self._arrays[identity]

    def drop_pictures(self) -> None:
        """Let go of the arrays: the engine has its own by now."""
        self._arrays = {}

    def answer(self, rows: Sequence[Array]) -> object:
        """Finish the rows in float32 and run `post`. Raises `RequestError` or `PluginError`."""
        return guarded(self._processor, self._processor.post, self._reading.outputs(rows), self._context)


def tokens_of(one: PoolingInput) -> Tokens:
    """What is read of an input beside its picture."""
    content = one.content.tokens if isinstance(one.content, RankedPicture) else one.content
    assert isinstance(content, Tokens), "a picture alone is no input of a processor's"
    return content


def second_text_at(one: PoolingInput) -> int | None:
    """Where the second text of a pair begins, for models that tell the texts of a pair apart; None without one."""
    kinds = tokens_of(one).type_ids
    return kinds.index(1) if kinds and 1 in kinds else None
