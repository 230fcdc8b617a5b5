"""`/classify` and `/pooling`."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.gateway.pooling.call import Call, TaskCall, check_dimensions, place_of_input
from chiasm.gateway.pooling.contents import Contents, inputs, written
from chiasm.gateway.pooling.numbers import in_base64, in_lists
from chiasm.gateway.pooling.plugin import ProcessorCall
from chiasm.pooling.io.base import IOProcessor
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.pooling.fields import NESTED_NAMES, POOLING_POLICY, Heading
from chiasm.protocol.pooling.tasks import (
    Classification,
    ClassificationList,
    ClassifyRequest,
    PoolingData,
    PoolingList,
    PoolingTaskRequest,
)
from chiasm.protocol.pooling.work import PoolingInfo, PoolingTask, PoolOutput


class ClassifyDialect:
    """`POST /classify`."""

    name = "classify"
    id_prefix = "classify"

    def call(self, body: bytes, info: PoolingInfo) -> Call:
        """See `Dialect`."""
        request = decode_request(body, ClassifyRequest, POOLING_POLICY, NESTED_NAMES)
        contents = Contents()
        read = contents.of_texts(request.input)

        def write(outputs: Sequence[PoolOutput], heading: Heading) -> ClassificationList:
            data = [_classified(index, one, info.labels) for index, one in enumerate(outputs)]
            return ClassificationList(**heading.shared(), data=data)  # type: ignore[arg-type]

        return TaskCall(
            model=request.model,
            options=request.chiasm,
            references=contents.references,
            task="classify",
            inputs=inputs(read),
            params=msgspec.structs.replace(
                request.params(), add_special_tokens=request.add_special_tokens is not False
            ),
            place=place_of_input(request.input),
            write=write,
        )


class PoolingDialect:
    """`POST /pooling`: any task of the model, or a processor."""

    name = "pooling"
    id_prefix = "pool"

    def __init__(self, processors: Mapping[str, IOProcessor]) -> None:
        """Take the processors that are offered; the first is the default."""
        self._processors = processors

    def call(self, body: bytes, info: PoolingInfo) -> Call:
        """See `Dialect`."""
        request = decode_request(body, PoolingTaskRequest, POOLING_POLICY, NESTED_NAMES)
        if request.task == "plugin" or (request.task is None and request.data is not None):
            return ProcessorCall(request, self._processor(request.processor))
        contents = Contents()
        read = written(request, contents, info)
        is_base64 = request.encoding_format == "base64"

        def write(outputs: Sequence[PoolOutput], heading: Heading) -> PoolingList:
            data = [_numbers(index, one, is_base64=is_base64) for index, one in enumerate(outputs)]
            return PoolingList(**heading.shared(), data=data)  # type: ignore[arg-type]

        return TaskCall(
            model=request.model,
            options=request.chiasm,
            references=contents.references,
            task=request.task or _default_task(info),
            inputs=inputs(read),
            params=msgspec.structs.replace(
                request.params(),
                dimensions=check_dimensions(request.dimensions, info, "/dimensions"),
                add_special_tokens=request.add_special_tokens is not False,
            ),
            place=place_of_input(request.input),
            write=write,
        )

    def _processor(self, name: str | None) -> IOProcessor:
        if not self._processors:
            raise UnsupportedFeatureError(
                "No processor is offered here", hint="Start the server with pooling.io_processors", param="/task"
            )
        if name is None:
            return next(iter(self._processors.values()))
        if name not in self._processors:
            known = ", ".join(self._processors)
            raise InvalidRequestError("No such processor", hint=f"Offered here: {known}", param="/processor")
        return self._processors[name]


def _default_task(info: PoolingInfo) -> PoolingTask:
    """The model's first; a model that only scores has none that takes single texts."""
    task = info.tasks[0]
    if task == "score":
        raise UnsupportedFeatureError("The model scores pairs only", hint="Use /score or /rerank", param="/task")
    return task


def _classified(index: int, output: PoolOutput, labels: Sequence[str]) -> Classification:
    values = output.values
    is_number = bool(np.isfinite(values).all())
    label = labels[int(values.argmax())] if is_number else None
    return Classification(index=index, label=label, probs=in_lists(values), num_classes=len(values))


def _numbers(index: int, output: PoolOutput, *, is_base64: bool) -> PoolingData:
    form = in_base64 if is_base64 else in_lists
    return PoolingData(index=index, data=form(output.values), shape=output.values.shape)
