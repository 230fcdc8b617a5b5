"""Scores and ranks: order, ties, numbers that are none, and what is refused."""

import pytest

from chiasm.protocol.pooling.work import PairInput
from tests.asgi import call

DOCUMENTS = ["score 0.2", "score 0.9", "score 0.2", {"text": "score nan", "title": "x"}, "score 0.5", "score inf"]


async def rerank(app, path="/rerank", **body):
    return await call(app, path, {"query": "q", "documents": DOCUMENTS} | body)


async def test_best_first_ties_in_order_and_nan_last(app):
    made = await rerank(app)
    found = [(one["index"], one["relevance_score"]) for one in made.json["results"]]
    assert [index for index, _ in found] == [5, 1, 4, 0, 2, 3]
    assert found[0][1] is None
    assert found[-1][1] is None
    assert found[1][1] == pytest.approx(0.9)


async def test_documents_come_back_unless_coheres_second_version_is_asked(app):
    assert (await rerank(app)).json["results"][1]["document"] == {"text": "score 0.9"}
    assert "document" in (await rerank(app, "/v1/rerank")).json["results"][0]
    assert "document" not in (await rerank(app, "/v2/rerank")).json["results"][0]
    assert "document" in (await rerank(app, "/v2/rerank", return_documents=True)).json["results"][0]
    assert "document" not in (await rerank(app, return_documents=False)).json["results"][0]


@pytest.mark.parametrize(("top_n", "count"), [(0, 6), (1, 1), (6, 6), (99, 6), (None, 6)])
async def test_top_n(app, top_n, count):
    assert len((await rerank(app, top_n=top_n)).json["results"]) == count


async def test_documents_are_cut_unless_asked_not_to(app, worker):
    made = await rerank(app, documents=["long 0.1", "score 0.2"], max_tokens_per_doc=5)
    assert worker.pooled[0].params.max_document_tokens == 5
    assert made.json["truncated"] == [0]
    assert made.json["meta"]["warnings"]
    refused = await rerank(app, documents=["score 0.2", "long 0.1"], truncation=False)
    assert (refused.status, refused.error["param"]) == (400, "/documents/1")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": []}, "/documents"),
        ({"query": ""}, "/query"),
        ({"query": None}, "/query"),
        ({"top_n": -1}, "/top_n"),
        ({"top_n": 1.5}, "/top_n"),
        ({"documents": [{"title": "x"}]}, "/documents/0"),
        ({"documents": "score 1"}, "/documents"),
        ({"rank_fields": ["title"]}, "/rank_fields"),
    ],
)
async def test_what_is_refused(app, body, param):
    made = await rerank(app, **body)
    assert (made.status, made.error["param"]) == (400, param)


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_scores_under_all_names(app, worker, names, path):
    made = await call(app, path, {names[0]: "a", names[1]: ["score 0.5", "score nan"]})
    assert [(one["index"], one["score"]) for one in made.json["data"]] == [(0, 0.5), (1, None)]
    assert worker.pooled[0].inputs == (PairInput("a", "score 0.5"), PairInput("a", "score nan"))


async def test_scores_of_pairs_one_to_one(app, worker):
    await call(app, "/score", {"text_1": ["a", "b"], "text_2": ["score 1", "score 2"]})
    assert worker.pooled[0].inputs == (PairInput("a", "score 1"), PairInput("b", "score 2"))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text_1": "a"},
        {"text_1": "a", "documents": ["b"]},
        {"text_1": "a", "text_2": "b", "queries": "c", "documents": "d"},
        {"text_1": ["a", "b"], "text_2": ["score 1"]},
        {"text_1": "a", "text_2": []},
    ],
)
async def test_sides_that_do_not_pair(app, body):
    made = await call(app, "/score", body)
    assert made.status == 400
    assert made.error["param"].startswith("/text_")


async def test_a_single_text_on_both_sides(app):
    made = await call(app, "/score", {"text_1": "a", "text_2": "long 0.5"})
    assert made.json["data"][0]["score"] == 0.5
