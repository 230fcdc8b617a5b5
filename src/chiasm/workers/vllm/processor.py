"""vLLM's IO processor around one of Chiasm's, for the group `vllm.io_processor_plugins`.

vLLM calls `pre_process` and `merge_pooling_params` one after the other without waiting in between, then computes, then
calls `post_process` on a thread, or never: when a request is refused, fails or is cancelled. Ids of requests are no
keys, since callers choose them (`X-Request-Id`).

vLLM calls all but `post_process` on its event loop. With `chiasm.workers.vllm.middleware` a request has been read
before, on threads, and what vLLM calls here only hands it on.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.exceptions import VLLMValidationError
from vllm.inputs import TokensPrompt
from vllm.outputs import PoolingRequestOutput
from vllm.plugins.io_processors.interface import IOProcessor as VllmIOProcessor
from vllm.pooling_params import PoolingParams

from chiasm.errors import InvalidRequestError, PluginError, RequestError
from chiasm.observability.logs import LOGGER
from chiasm.pooling.io.base import IOProcessor, guarded
from chiasm.workers.vllm.ahead import READ_AHEAD, Serving, announce
from chiasm.workers.vllm.model import served_model
from chiasm.workers.vllm.requests import InputTokens, RequestUnderWay, second_text_at

_UNCLAIMED: ContextVar[deque[PoolingParams] | None] = ContextVar("chiasm_unclaimed_params", default=None)
"""Between `pre_process` and `merge_pooling_params` of a request; a context is its task's, and ends with it."""


class ProcessorInVllm(VllmIOProcessor):  # type: ignore[misc]
    """Serves `kind`. Made by vLLM, once in each API server."""

    kind: ClassVar[type[IOProcessor]]

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        """Read the model's files. Raises `EngineStartError` when they and vLLM's configuration do not go together."""
        super().__init__(vllm_config, renderer)
        self._served = served_model(vllm_config.model_config)
        self._processor = self.kind(self._served.info)
        text = vllm_config.model_config.hf_text_config
        self._has_type_ids = getattr(text, "type_vocab_size", 0) > 1
        announce(Serving(self._processor, self._served))

    def parse_data(self, data: object) -> Any:
        """Check the request's `data`."""
        request = READ_AHEAD.get()
        if request is not None:
            return request
        with _in_words_of_vllm():
            return guarded(self._processor, self._processor.parse, data)

    def pre_process(self, prompt: Any, request_id: str | None = None, **_: Any) -> list[TokensPrompt]:
        """Make one prompt of each distinct input."""
        request = prompt
        if not isinstance(request, RequestUnderWay):
            with _in_words_of_vllm():
                request = RequestUnderWay(self._processor, self._served, prompt, request_id or "").read()
        _UNCLAIMED.set(deque(self._params(request)))
        prompts = [_prompt(tokens, request.picture(tokens.place)) for tokens in request.tokens()]
        request.drop_pictures()
        return prompts

    def merge_pooling_params(self, params: PoolingParams | None = None) -> Any:
        """Parameters of the inputs that `pre_process` has just made.

        Serving asks once for all of them and passes nothing; offline use asks for each, in order.
        """
        unclaimed = _UNCLAIMED.get()
        if unclaimed is None:
            raise PluginError("vLLM asks for parameters of no request", hint="This version of vLLM is not supported")
        if params is None:
            _UNCLAIMED.set(None)
            return _ParamsOfInputs(unclaimed)
        if params.use_activation is not None or params.dimensions is not None:
            raise VLLMValidationError("The processor chooses pooling parameters itself", parameter="pooling_params")
        one = unclaimed.popleft()
        if not unclaimed:
            _UNCLAIMED.set(None)
        return one

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **_: Any
    ) -> object:
        """Make the answer of all rows, in whatever order they come."""
        with _in_words_of_vllm():
            by_place = {_tokens_of(one).place: one for one in model_output}
            request: RequestUnderWay = _tokens_of(model_output[0]).request
            rows = [by_place[place].outputs.data.float().cpu().numpy() for place in range(len(request.inputs))]
            return request.answer(rows)

    def _params(self, request: RequestUnderWay) -> Iterator[PoolingParams]:
        """Rows as they are, without an activation: heads are Chiasm's own."""
        shape = self._served.model.shape
        kind = "embed" if shape == "embedder" else "classify"
        for one in request.inputs:
            task = kind if one.rows == "pooled" else f"token_{kind}"
            at = second_text_at(one) if self._has_type_ids else None
            extra = None if at is None else {"compressed_token_type_ids": at}
            yield PoolingParams(task=task, use_activation=False, extra_kwargs=extra)


class _ParamsOfInputs(list[PoolingParams]):
    """One per input, where vLLM's serving also looks at `task` and calls `verify` as of a single one."""

    @property
    def task(self) -> Any:
        """All inputs have the same."""
        return self[0].task

    def verify(self, model_config: Any) -> None:
        """Check and complete each."""
        for one in self:
            one.verify(model_config)


def for_vllm(kind: type[IOProcessor]) -> type[ProcessorInVllm]:
    """The class that an entry point of `vllm.io_processor_plugins` names, for one of Chiasm's processors."""
    return type(f"{kind.__name__}InVllm", (ProcessorInVllm,), {"kind": kind, "__doc__": kind.__doc__})


def _prompt(tokens: InputTokens, picture: tuple[str, NDArray[np.float32]] | None) -> TokensPrompt:
    """Of one input; vLLM keeps what its model makes of a picture under the picture's identity."""
    if picture is None:
        return TokensPrompt(prompt_token_ids=tokens)
    identity, pixels = picture
    return TokensPrompt(
        prompt_token_ids=tokens,
        multi_modal_data={"image": torch.from_numpy(pixels)},
        multi_modal_uuids={"image": [identity]},
    )


def _tokens_of(output: PoolingRequestOutput) -> InputTokens:
    tokens = output.prompt_token_ids
    if not isinstance(tokens, InputTokens):
        raise InvalidRequestError(
            "The request had its inputs cut or padded after the processor had made them",
            hint="Leave out truncate_prompt_tokens and pad_prompt_tokens: the processor cuts what is too long",
        )
    return tokens


@contextmanager
def _in_words_of_vllm() -> Iterator[None]:
    """What the caller should mend becomes status 400; a processor's own failure is logged and becomes 500."""
    try:
        yield
    except RequestError as error:
        raise VLLMValidationError(
            f"{error.message}. {error.hint or ''}".strip(), parameter=error.param or "/data"
        ) from None
    except PluginError as error:
        LOGGER.error("An IO processor failed", exc_info=error.__cause__)
        raise
