"""Heads, scores, ranks, truncation and batches, with the right values written down."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from chiasm.pooling import heads
from chiasm.pooling.batching import WaitingRequest, choose
from chiasm.pooling.ranking import ranked, reported
from chiasm.pooling.scoring import cosine, max_sim
from chiasm.pooling.truncation import pair_lengths

NAN = math.nan


def f32(*values):
    return np.array(values, np.float32)


def test_embeddings_are_cut_before_they_are_normalized():
    row = f32(3.0, 4.0, 12.0)
    assert heads.normalized(heads.cut(row, 2)).tolist() == pytest.approx([0.6, 0.8])
    assert heads.cut(row, None) is row


def test_a_row_of_zeros_stays():
    assert heads.normalized(f32(0.0, 0.0)).tolist() == [0.0, 0.0]


def test_rows_are_normalized_one_by_one():
    assert heads.normalized(np.stack([f32(3, 4), f32(0, 2)])).tolist() == [pytest.approx([0.6, 0.8]), [0.0, 1.0]]


def test_calibration():
    assert heads.calibrated(f32(3.0, 1.0), 1.0, 2.0).tolist() == [1.0, 0.0]
    logits = f32(1.0)
    assert heads.calibrated(logits, 0.0, 1.0) is logits


def test_activations_do_not_overflow():
    assert heads.activated(f32(-200.0, 0.0, 200.0), "sigmoid").tolist() == [0.0, 0.5, 1.0]
    assert heads.activated(f32(1000.0, 1000.0, -1000.0), "softmax").tolist() == [0.5, 0.5, 0.0]
    assert heads.activated(f32(-3.0), "identity").tolist() == [-3.0]


def test_everything_stays_float32():
    for name in ("sigmoid", "softmax"):
        assert heads.activated(f32(1.0, 2.0), name).dtype == np.float32
    assert heads.calibrated(f32(1.0), 0.5, 3.0).dtype == np.float32
    assert heads.normalized(f32(1.0)).dtype == np.float32


def test_scores():
    assert cosine(f32(0.6, 0.8), f32(1.0, 0.0)) == np.float32(0.6)
    query, document = np.eye(2, 3, dtype=np.float32), np.stack([f32(0.5, 0.25, 0), f32(-1, 0.75, 0)])
    assert max_sim(query, document) == np.float32(1.25)


@pytest.mark.parametrize(
    ("scores", "top_n", "order"),
    [
        ([0.1, 0.9, 0.5], None, [1, 2, 0]),
        ([0.5, 0.5, 0.5], 2, [0, 1]),
        ([NAN, -1.0, NAN, 2.0], None, [3, 1, 0, 2]),
        ([-math.inf, math.inf, NAN], None, [1, 0, 2]),
        ([], 3, []),
        ([0.0, -0.0], None, [0, 1]),
    ],
)
def test_ranks(scores, top_n, order):
    assert ranked(scores, top_n) == order


def test_what_is_no_number_is_reported_as_null():
    assert [reported(value) for value in (1.5, NAN, math.inf, -math.inf)] == [1.5, None, None, None]


WORDS = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
WORDS.pre_tokenizer = pre_tokenizers.Whitespace()


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_pairs_are_cut_as_hugging_face_does(first, second, room):
    WORDS.enable_truncation(room, strategy="longest_first")
    kept = WORDS.encode(" a" * first, " b" * second)
    assert pair_lengths(first, second, room) == (kept.ids.count(0), kept.ids.count(1))


requests = st.lists(
    st.builds(WaitingRequest, st.floats(0, 100), st.lists(st.integers(1, 50), min_size=1, max_size=6)), max_size=6
)


@given(requests, st.integers(1, 80), st.floats(0, 200))
def test_batches_fit_and_end(waiting, max_tokens, now_s):
    taken = []
    while batch := choose(waiting, max_tokens, now_s, max_delay_s=1.0):
        tokens = sum(request.lengths[number] for request, number in batch)
        assert tokens <= max_tokens or len(batch) == 1
        taken += [(id(request), number) for request, number in batch]
    assert sorted(taken) == sorted((id(one), number) for one in waiting for number in range(len(one.lengths)))
    assert all(one.num_tokens_left == 0 for one in waiting)


def test_a_short_request_passes_a_long_one_that_is_not_overdue():
    bulk, query = WaitingRequest(0.0, [8] * 10), WaitingRequest(1.0, [3])
    assert choose([bulk, query], 11, now_s=1.05, max_delay_s=2.0) == [(query, 0), (bulk, 9)]


def test_nobody_is_passed_over_for_longer_than_the_delay():
    bulk, query = WaitingRequest(0.0, [8, 8]), WaitingRequest(1.0, [3])
    assert choose([bulk, query], 16, now_s=2.0, max_delay_s=2.0) == [(bulk, 1), (bulk, 0)]
    assert choose([bulk, query], 16, now_s=2.0, max_delay_s=2.0) == [(query, 0)]


def test_what_does_not_fit_leaves_its_room_to_others():
    long, short = WaitingRequest(0.0, [4, 20]), WaitingRequest(0.5, [5])
    assert choose([long, short], 10, now_s=9.0, max_delay_s=1.0) == [(long, 0), (short, 0)]


def test_an_input_longer_than_a_batch_goes_alone():
    assert choose([WaitingRequest(0.0, [100, 100])], 10, now_s=0.0, max_delay_s=1.0)[0][1] == 1
