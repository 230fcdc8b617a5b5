"""How far all pictures of a model that scores move together."""

import pytest

from chiasm.launch.parity_fast import ScoreMovement, summary_of


def row(exact=None, fast=None, cosine=None):
    return ScoreMovement(file="a.jpg", exact_score=exact, fast_score=fast, cosine=cosine)


def test_differences_and_places():
    found = summary_of([row(0.9, 0.9), row(0.5, 0.2), row(0.4, 0.5), row(0.1, 0.1)])
    assert (found.num_pictures, found.num_moved, found.least_cosine) == (4, 2, None)
    assert found.max_difference == pytest.approx(0.3)
    assert found.mean_difference == pytest.approx(0.1)
    assert found.rank_agreement == pytest.approx(5 / 6)


def test_the_same_ranking():
    found = summary_of([row(0.9, 0.8, 0.999), row(0.5, 0.4, 0.99)])
    assert (found.num_moved, found.rank_agreement, found.least_cosine) == (0, 1.0, 0.99)


def test_one_picture_has_no_ranking():
    found = summary_of([row(0.9, 0.8)])
    assert (found.num_moved, found.rank_agreement) == (None, None)
    assert found.max_difference == pytest.approx(0.1)


def test_embeddings_alone():
    found = summary_of([row(cosine=0.5), row(cosine=0.75)])
    assert (found.least_cosine, found.max_difference, found.num_moved, found.rank_agreement) == (0.5, None, None, None)
