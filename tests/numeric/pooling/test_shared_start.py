"""What the texts of a request begin with is computed once, and changes nothing: against each text alone, and counts."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from chiasm.engines.pooling.batch import Tokens, pack
from chiasm.protocol.pooling.work import PairInput, PoolParams, PoolRequest, TextInput
from tests.numeric.pooling.models import build
from tests.numeric.pooling.served import served

QUERY = "what is the capital of a country that begins with F?"
DOCUMENTS = ["Paris", "Fish swim in the sea", "", "P", "Paris", "x" * 70, "Paris is a town"]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    directory = build(tmp_path_factory.mktemp("models") / "yes_no", "qwen3", "causal")
    with served(directory, pooling__task="yes_no") as worker:
        yield worker


def computed(one, inputs, task="score"):
    """Tokens computed for a request."""
    request = PoolRequest(request_id="t", task=task, inputs=tuple(inputs), params=PoolParams())
    return asyncio.run(one.worker.pool(request)).num_computed_tokens


def test_a_question_is_read_once_for_all_its_documents(one):
    pairs = [PairInput(QUERY, document) for document in DOCUMENTS]
    found = one.values("score", pairs, activate=False)
    alone = [one.values("score", [pair], activate=False)[0] for pair in pairs]
    np.testing.assert_allclose(np.stack(found), np.stack(alone), rtol=0, atol=1e-6)
    assert np.ptp(np.stack(found)) > 1e-3
    whole = [output.num_tokens for output in one.pool("score", pairs)]
    distinct = [whole[0], whole[1], whole[2], whole[3], whole[5], whole[6]]
    saved = sum(distinct) - computed(one, pairs)
    assert saved > 5 * 300, "five of six do without the template and the query"
    assert computed(one, pairs[:1]) == whole[0]


def test_requests_at_once_share_or_do_not_and_come_to_the_same(one):
    """Starts of several requests lie in one batch, also the same start twice."""
    queries = [QUERY, "another question", QUERY]

    async def ask(query):
        inputs = tuple(PairInput(query, document) for document in DOCUMENTS)
        request = PoolRequest(request_id="t", task="score", inputs=inputs, params=PoolParams(activate=False))
        return [float(output.values[0]) for output in (await one.worker.pool(request)).outputs]

    async def ask_all():
        return await asyncio.gather(*map(ask, queries))

    for query, found in zip(queries, asyncio.run(ask_all()), strict=True):
        alone = [one.values("score", [PairInput(query, text)], activate=False)[0][0] for text in DOCUMENTS]
        np.testing.assert_allclose(found, alone, rtol=0, atol=1e-6)


def test_windows_of_attention_reach_into_the_start(tmp_path):
    """A model whose layers see 24 tokens back, with a start of 40."""
    settings = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1, "num_labels": 1}
    directory = build(tmp_path / "m", "qwen2", "sequence", pad_token_id=0, **settings)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = ["s" * 40 + document for document in ("one", "another", "", "y" * 50)]
    with served(directory) as one:
        found = one.values("score", [PairInput("s" * 40, text[40:]) for text in texts], activate=False)
        direct = one.values("classify", map(TextInput, texts), activate=False)
        assert computed(one, map(TextInput, texts), "classify") < sum(len(text) + 1 for text in texts)
    for row, pair, text in zip(direct, found, texts, strict=True):
        with torch.no_grad():
            wanted = model(**tokenizer(text, return_tensors="pt")).logits[0].numpy()
        np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-5)
        np.testing.assert_allclose(pair, wanted, rtol=0, atol=1e-5)


def test_how_starts_lie_in_the_row():
    """Own tokens first, then each start once, then the filler; positions go on where the start ends."""
    inputs = [Tokens((1, 2, 3, 9)), Tokens((1, 2, 3, 8)), Tokens((5, 6)), Tokens((1, 2, 3, 7, 7))]
    batch = pack(inputs, [3, 3, 0, 3])
    assert batch.ids.tolist()[:9] == [9, 8, 5, 6, 7, 7, 1, 2, 3]
    assert batch.positions.tolist()[:9] == [3, 3, 0, 1, 3, 4, 0, 1, 2]
    assert batch.ends == (1, 2, 4, 6)
    assert [(run.num_texts, run.num_tokens, run.prefix) for run in batch.runs] == [
        (2, 1, slice(6, 9)),
        (1, 2, None),
        (1, 2, slice(6, 9)),
        (1, 3, None),
        (1, 7, None),
    ]
    assert len(batch.ids) == len(batch.positions) == 16
