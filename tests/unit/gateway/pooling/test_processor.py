"""Requests that a processor serves: whose they are, what comes back, and how they fail."""

import logging

import pytest

from chiasm.pooling.io.reranker import Reranker
from tests.asgi import call

DATA = {"query": "q", "candidates": ["a 0.25", "b 0.75"]}


def body(data=DATA, **fields):
    return {"task": "plugin", "processor": "reranker", "data": data} | fields


async def test_the_answer_is_the_processors_under_the_servers_id(app, monkeypatch):
    seen, whole = [], Reranker.pre

    def watched(self, request, context):
        seen.append(context)
        return whole(self, request, context)

    monkeypatch.setattr(Reranker, "pre", watched)
    made = await call(app, "/pooling", body())
    assert made.status == 200, made.error
    assert [one["index"] for one in made.json["data"]["results"]] == [1, 0]
    [context] = seen
    assert context.request_id == made.json["request_id"]
    assert context.state is None


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"data": {"query": "q", "candidates": [7]}}, 400, "/data/candidates/0"),
        ({"data": None}, 400, "/data"),
        ({"processor": "none"}, 400, "/processor"),
        ({"data": {"query": "q", "candidates": [f"{number} 0.5" for number in range(9)]}}, 413, "/data"),
        ({"model": "another"}, 404, "/model"),
    ],
)
async def test_what_the_caller_should_mend(app, fields, status, param):
    made = await call(app, "/pooling", body() | fields)
    assert (made.status, made.error["param"]) == (status, param)


async def test_a_processors_own_failure_says_nothing_of_the_data(app, monkeypatch, caplog):
    def fails(self, outputs, context):
        raise KeyError("a bug")

    monkeypatch.setattr(Reranker, "post", fails)
    with caplog.at_level(logging.ERROR):
        made = await call(app, "/pooling", body({"query": "secret", "candidates": ["secret 0.5"]}))
    assert made.status == 500
    assert "a bug" in caplog.text
    assert "secret" not in caplog.text + made.body.decode()
