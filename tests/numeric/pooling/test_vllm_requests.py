"""A processor's request around an engine that only computes rows: equal inputs once, in order, and gone afterwards."""

import copy
import gc
import weakref

import msgspec
import numpy as np
import pytest

from chiasm.engines.pooling.tokens import InputTokenizer
from chiasm.errors import (
    ContextLengthError,
    InvalidRequestError,
    PluginError,
    UnsupportedFeatureError,
    UnsupportedMediaError,
)
from chiasm.pooling.io.base import IOProcessor, ProcessorWork
from chiasm.pooling.io.reranker import Reranker
from chiasm.pooling.model_files import read_pooling_model
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.pooling.work import ImageInput, PairInput, TextInput
from chiasm.workers.pooling.facts import pooling_info
from chiasm.workers.pooling.tasks import Reader
from chiasm.workers.vllm.requests import InputTokens, RequestUnderWay, ServedModel, second_text_at
from tests.numeric.pooling.models import build

PICTURE = ImageInput(
    MediaItem(identity="0" * 64, format="png", width=1, height=1, source=InlineSource(data=b"not looked at"))
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = build(tmp_path_factory.mktemp("bert"), "bert", "sequence", num_labels=1)
    model = read_pooling_model(directory)
    reader = Reader(model, InputTokenizer(directory, model, max_tokens=model.max_tokens), similarity=None)
    return ServedModel("tiny", model, reader, pooling_info(model, 0))


def rerank(served, *candidates):
    processor = Reranker(served.info)
    parsed = processor.parse({"query": "q", "candidates": list(candidates)})
    return RequestUnderWay(processor, served, parsed, "the-same-id").read()


def scores(request):
    """The answer to rows that hold each input's number of tokens."""
    return request.answer([np.array([len(tokens)], np.float32) for tokens in request.tokens()])["results"]


def test_equal_inputs_are_computed_once_and_answered_in_their_places(served):
    request = rerank(served, "long text", "b", "long text")
    assert len(request.inputs) == 2
    assert [one["index"] for one in scores(request)] == [0, 2, 1]


def test_tokens_lead_back_to_their_request_and_are_plain_on_the_wire(served):
    one, other = rerank(served, "a", "b"), rerank(served, "c")
    tokens = one.tokens()
    assert [(at.request is one, at.place) for at in tokens] == [(True, 0), (True, 1)]
    assert other.tokens()[0].request is other
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tokens[0])) == list(tokens[0])


def test_a_cut_or_padded_list_is_told_from_the_request_s_own(served):
    tokens = rerank(served, "abc").tokens()[0]
    assert not isinstance(tokens[:2], InputTokens)
    assert not isinstance(tokens + [0], InputTokens)  # noqa: RUF005 - as vLLM pads
    assert not isinstance(copy.copy(list(tokens)), InputTokens)


def test_state_ends_with_the_tokens(served):
    request = rerank(served, "a", "b")
    gone, tokens = weakref.ref(request), request.tokens()
    del request
    gc.collect()
    assert gone() is not None
    tokens.clear()
    gc.collect()
    assert gone() is None


def test_the_second_text_of_a_pair_is_found(served):
    (one,) = rerank(served, "abc").inputs
    at = second_text_at(one)
    assert one.content.type_ids == (0,) * at + (1,) * (len(one.content.ids) - at)


def test_a_single_text_has_no_second_one(served):
    class Texts(Asking):
        work = ProcessorWork("classify", (TextInput("a"),))

    request = RequestUnderWay(Texts(served.info), served, None, "").read()
    assert second_text_at(request.inputs[0]) is None


class Asking(IOProcessor):
    """Asks for what it is given."""

    name = "asking"
    work: ProcessorWork

    def parse(self, data):
        return data

    def pre(self, request, context):
        return self.work

    def post(self, outputs, context):
        raise ValueError("a bug")


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (ProcessorWork("score", ()), InvalidRequestError),
        (ProcessorWork("embed", (TextInput("a"),)), UnsupportedFeatureError),
        (ProcessorWork("score", (TextInput("a"),)), InvalidRequestError),
        (ProcessorWork("classify", (PICTURE,)), UnsupportedMediaError),
        (ProcessorWork("score", (PairInput("a" * 9, "b" * 999),)), ContextLengthError),
    ],
    ids=["nothing", "another task", "no pair", "a picture", "too long"],
)
def test_what_cannot_be_computed_is_refused_before_the_engine(served, work, error):
    class Bad(Asking):
        pass

    Bad.work = work
    with pytest.raises(error):
        RequestUnderWay(Bad(served.info), served, None, "").read()


def test_a_bug_in_post_is_the_processor_s_failure(served):
    class Texts(Asking):
        work = ProcessorWork("classify", (TextInput("a"),))

    with pytest.raises(PluginError, match="asking"):
        RequestUnderWay(Texts(served.info), served, None, "").read().answer([np.zeros(1, np.float32)])


def test_a_processor_that_wants_pictures_fetched_is_refused(served):
    class WithPictures(Asking):
        def media(self, request):
            return [object()]

    with pytest.raises(UnsupportedFeatureError, match="inside vLLM"):
        RequestUnderWay(WithPictures(served.info), served, None, "").read()
