"""The processor that ranks pictures: which of them fail, whom that harms, and in what order the others come."""

import hashlib

import numpy as np
import pytest

from chiasm.errors import InvalidRequestError, MediaDecodeError, MediaFetchError, UnsupportedModelError
from chiasm.pooling.io.base import RequestContext
from chiasm.pooling.io.image_ranker import ImageRanker
from chiasm.pooling.io.registry import make_processors
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.pooling.work import MediaPairInput, PoolingInfo, PoolOutput, PoolParams

RANKER = PoolingInfo(tasks=("score",), scorer="image_ranker", max_tokens=8, takes_images=True)
DUAL = PoolingInfo(tasks=("embed", "score"), scorer="bi_encoder", max_tokens=8, width=4, takes_images=True)


def item(name):
    data = name.encode()
    identity = hashlib.sha256(data).hexdigest()
    return MediaItem(identity=identity, format="png", width=8, height=8, source=InlineSource(data))


def output(value):
    return PoolOutput(values=np.array([value], np.float32), num_tokens=1)


def broken(item):
    """As the worker says it, which counts the inputs that it was given."""
    error = MediaDecodeError(f"Media item {item}: broken", item=item)
    return PoolOutput(values=np.empty(0, np.float32), num_tokens=0, error=error)


def serve(data, media, outputs):
    """Run all steps; the inputs that the engine was asked for, and the answer."""
    processor, context = ImageRanker(RANKER), RequestContext("r")
    request = processor.parse(data)
    assert len(processor.media(request)) == len(media)
    context.media = media
    work = processor.pre(request, context)
    return work.inputs, processor.post(outputs, context)


def test_order_ids_and_duplicates():
    candidates = ["https://e.org/a", {"image": "data:b", "text": "words", "id": 7}, "https://e.org/a"]
    data = {"query": "q", "candidates": candidates}
    references = ImageRanker(RANKER).media(ImageRanker(RANKER).parse(data))
    assert [one.param for one in references] == [
        "/data/candidates/0",
        "/data/candidates/1/image",
        "/data/candidates/2",
    ]
    assert [one.url for one in references] == ["https://e.org/a", "data:b", "https://e.org/a"]
    inputs, answer = serve(data, [item("a"), item("b"), item("a")], [output(0.25), output(0.5), output(0.25)])
    assert inputs == (
        MediaPairInput("q", item("a")),
        MediaPairInput("q", item("b"), "words"),
        MediaPairInput("q", item("a")),
    )
    assert [(one["index"], one["id"], one["score"]) for one in answer["results"]] == [
        (1, 7, 0.5),
        (0, None, 0.25),
        (2, None, 0.25),
    ]
    assert answer["errors"] == []


def test_one_that_fails_is_reported_and_the_others_keep_their_places():
    data = {"query": "q", "candidates": ["a", {"image": "b", "id": "x"}, "c", "d"], "top_n": 1}
    media = [item("a"), MediaFetchError("not found"), item("c"), item("d")]
    inputs, answer = serve(data, media, [output(0.1), broken(1), output(0.9)])
    assert len(inputs) == 3
    assert answer == {
        "results": [{"index": 3, "id": None, "score": pytest.approx(0.9)}],
        "errors": [
            {"index": 1, "id": "x", "code": "media_fetch_failed", "message": "not found"},
            {"index": 2, "id": None, "code": "media_undecodable", "message": "Media item 2: broken"},
        ],
    }


def test_it_refuses_the_request_by_option():
    data = {"query": "q", "candidates": ["a", "b"], "on_error": "refuse"}
    with pytest.raises(MediaFetchError):
        serve(data, [item("a"), MediaFetchError("not found")], [])
    with pytest.raises(MediaDecodeError):
        serve(data, [item("a"), item("b")], [output(0.5), broken(1)])


def test_nothing_to_rank_is_the_first_error():
    data = {"query": "q", "candidates": ["a", "b"]}
    with pytest.raises(MediaFetchError, match="first"):
        serve(data, [MediaFetchError("first"), MediaFetchError("second")], [])
    data = {"query": "q", "candidates": ["a", {"image": "b"}]}
    with pytest.raises(MediaFetchError, match="first"):
        serve(data, [MediaFetchError("first"), item("b")], [broken(0)])
    with pytest.raises(MediaDecodeError, match="Media item 0: broken") as caught:
        serve(data, [item("a"), MediaFetchError("second")], [broken(0)])
    assert (caught.value.item, caught.value.param) == (0, "/data/candidates/0")


def test_a_score_that_is_no_number_comes_last():
    data = {"query": "q", "candidates": ["a", "b"]}
    _, answer = serve(data, [item("a"), item("b")], [output(np.nan), output(0.5)])
    assert [one["score"] for one in answer["results"]] == [0.5, None]


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"query": "q", "candidates": []}, "/data/candidates"),
        ({"query": "", "candidates": ["a"]}, "/data/query"),
        ({"query": "q", "candidates": [{"text": "a"}]}, "/data/candidates/0"),
        ({"query": "q", "candidates": ["a"], "top_n": -1}, "/data/top_n"),
        ({"query": "q", "candidates": ["a"], "on_error": "ignore"}, "/data/on_error"),
    ],
)
def test_what_is_refused(data, param):
    with pytest.raises(InvalidRequestError) as caught:
        ImageRanker(RANKER).parse(data)
    assert caught.value.param == param


def test_parameters():
    merged = ImageRanker(RANKER).merge_params(PoolParams())
    assert (merged.truncate, merged.reports_failures) == ("end", True)


def test_which_models_it_is_for():
    assert list(make_processors((), RANKER)) == ["image_ranker"], "texts alone are not for this model"
    assert list(make_processors((), DUAL)) == ["reranker", "image_ranker"]
    with pytest.raises(UnsupportedModelError):
        ImageRanker(PoolingInfo(tasks=("score",), max_tokens=8))
