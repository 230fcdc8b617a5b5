"""The processors that come with Chiasm, and how others are found."""

import numpy as np
import pytest

from chiasm.errors import EngineStartError, InvalidRequestError, UnsupportedModelError
from chiasm.pooling.io import registry
from chiasm.pooling.io.absa import AspectSentiment
from chiasm.pooling.io.base import RequestContext
from chiasm.pooling.io.registry import make_processors, processor_class
from chiasm.pooling.io.reranker import Reranker
from chiasm.protocol.pooling.work import PairInput, PoolingInfo, PoolOutput, PoolParams, TokenPlace

SCORES = PoolingInfo(tasks=("classify", "score"), max_tokens=8, labels=("x",))
LABELS = PoolingInfo(tasks=("classify",), max_tokens=8, labels=("negative", "positive"))
TOKENS = PoolingInfo(tasks=("token_classify",), max_tokens=8, labels=("O", "B-NEG", "I-NEG", "B-POS", "I-POS"))


def serve(processor, data, values, places=((),) * 9):
    context = RequestContext("r")
    work = processor.pre(processor.parse(data), context)
    outputs = [
        PoolOutput(values=np.array(value, np.float32), num_tokens=1, places=place)
        for value, place in zip(values, places, strict=False)
    ]
    return work, processor.post(outputs, context)


def test_reranker():
    data = {"query": "q", "candidates": ["a", {"text": "b", "id": 7}, {"text": "a", "id": "z"}], "top_n": 2}
    work, answer = serve(Reranker(SCORES), data, [[0.25], [0.5], [0.25]])
    assert work.inputs == (PairInput("q", "a"), PairInput("q", "b"), PairInput("q", "a"))
    assert answer == {"results": [{"index": 1, "id": 7, "score": 0.5}, {"index": 0, "id": None, "score": 0.25}]}


def test_reranker_cuts_candidates_unless_told_how():
    reranker = Reranker(SCORES)
    assert reranker.merge_params(PoolParams()).truncate == "end"
    assert reranker.merge_params(PoolParams(truncate="start")).truncate == "start"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"query": "q", "candidates": []}, "/data/candidates"),
        ({"query": "", "candidates": ["a"]}, "/data/query"),
        ({"query": "q", "candidates": [{"id": 1}]}, "/data/candidates/0"),
        ({"query": "q", "candidates": ["a"], "top_n": -1}, "/data/top_n"),
        ([], "/data"),
        (None, "/data"),
    ],
)
def test_reranker_refuses(data, param):
    with pytest.raises(InvalidRequestError) as caught:
        Reranker(SCORES).parse(data)
    assert caught.value.param == param


def test_absa_by_label_points_at_the_aspect():
    data = {"reviews": [{"review": "Great Food, slow staff", "aspects": ["food", "staff", "price"]}]}
    work, answer = serve(AspectSentiment(LABELS), data, [[0.125, 0.875], [0.75, 0.25], [0.5, 0.5]])
    assert work.task == "classify"
    assert work.inputs[0] == PairInput("Great Food, slow staff", "food")
    assert answer["reviews"][0]["aspects"] == [
        {"aspect": "food", "label": "positive", "score": 0.875, "span": [6, 10]},
        {"aspect": "staff", "label": "negative", "score": 0.75, "span": [17, 22]},
        {"aspect": "price", "label": "negative", "score": 0.5, "span": None},
    ]


def test_absa_by_tokens_points_at_the_surest_words():
    """Tokens: [CLS] good food slow staff [SEP] food [SEP]."""
    text = [(-1, 0, 0), (0, 0, 4), (0, 5, 9), (0, 10, 14), (0, 15, 20), (-1, 0, 0), (1, 0, 4), (-1, 0, 0)]
    places = tuple(TokenPlace(*place) for place in text)
    rows = np.zeros((8, 5))
    rows[:, 0] = 0.5
    rows[1, 3], rows[2, 4], rows[3, 1], rows[4, 0], rows[6, 3] = 0.75, 0.75, 0.625, 0.9, 1.0
    data = {"reviews": [{"review": "good food slow staff", "aspects": ["food"]}]}
    work, answer = serve(AspectSentiment(TOKENS), data, [rows], [places])
    assert work.task == "token_classify"
    assert answer["reviews"][0]["aspects"][0] == {"aspect": "food", "label": "POS", "score": 0.75, "span": [0, 9]}


def test_absa_without_a_word_about_the_aspect():
    rows = np.tile(np.array([1.0, 0, 0, 0, 0]), (2, 1))
    places = (TokenPlace(-1, 0, 0), TokenPlace(0, 0, 2))
    data = {"reviews": [{"review": "no", "aspects": ["food"]}]}
    _, answer = serve(AspectSentiment(TOKENS), data, [rows], [places])
    assert answer["reviews"][0]["aspects"][0]["label"] is None


def test_absa_keeps_the_order_of_reviews_and_aspects():
    data = {"reviews": [{"review": "a b", "aspects": ["a", "b"]}, {"review": "c", "aspects": ["c"]}]}
    _, answer = serve(AspectSentiment(LABELS), data, [[0, 1.0], [1.0, 0], [0, 1.0]])
    labels = [[aspect["label"] for aspect in review["aspects"]] for review in answer["reviews"]]
    assert labels == [["positive", "negative"], ["positive"]]


def test_models_that_do_not_fit():
    with pytest.raises(UnsupportedModelError):
        Reranker(LABELS)
    with pytest.raises(UnsupportedModelError):
        AspectSentiment(PoolingInfo(tasks=("embed",), max_tokens=8))


def test_those_that_fit_are_offered_by_themselves():
    assert list(make_processors((), SCORES)) == ["reranker", "absa"]
    assert list(make_processors((), PoolingInfo(tasks=("embed", "score"), max_tokens=8))) == ["reranker"]
    with pytest.raises(UnsupportedModelError):
        make_processors(("reranker",), LABELS)


class Point:
    """An entry point of an installed package."""

    def __init__(self, name, target):
        self.name, self.target = name, target

    def load(self):
        if isinstance(self.target, Exception):
            raise self.target
        return self.target


class Mine(Reranker):
    name = "mine"


@pytest.fixture
def installed(monkeypatch):
    points = [Point("mine", Mine), Point("reranker", Mine), Point("broken", ImportError("x")), Point("odd", dict)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "chiasm.io_processors" else [])


def test_installed_processors_come_first(installed):
    assert processor_class("mine") is Mine
    assert processor_class("reranker") is Mine
    assert processor_class("absa") is AspectSentiment


@pytest.mark.parametrize("name", ["broken", "odd", "nowhere"])
def test_processors_that_cannot_be_had(installed, name):
    with pytest.raises(EngineStartError, match=name):
        processor_class(name)
