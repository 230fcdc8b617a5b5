"""Comparisons of numbers that should be the same."""

import numpy as np
import pytest

from chiasm.pooling.parity import compare, decided, equal


def rows(*values):
    return [np.array(value, np.float32) for value in values]


def test_the_largest_difference_decides():
    found = compare("x", rows([1.0, 2.0], [3.0, 4.5]), rows([1.0, 2.25], [3.0, 4.0]), tolerance=0.4)
    assert (found.is_passed, found.max_difference, found.mean_difference) == (False, 0.5, 0.1875)
    assert [(one.item, one.difference) for one in found.worst] == [(1, 0.5), (0, 0.25)]
    assert found.rank_agreement is None
    assert compare("x", rows([1.0]), rows([1.5]), tolerance=0.5).is_passed


@pytest.mark.parametrize("found", [rows([1.0, 2.0, 3.0]), rows([1.0, np.nan]), rows([np.inf, 1.0])])
def test_shapes_and_numbers_that_are_none_are_never_the_same(found):
    assert not compare("x", found, rows([1.0, 2.0]), tolerance=1e9).is_passed


@pytest.mark.parametrize(("scores", "agreement"), [([3, 2, 1], 1.0), ([1, 2, 3], 0.0), ([3, 1, 2], 2 / 3)])
def test_rank_agreement(scores, agreement):
    found = compare("x", rows(*[[float(s)] for s in scores]), rows([0.3], [0.2], [0.1]), tolerance=9)
    assert found.rank_agreement == pytest.approx(agreement)


def test_things_that_are_the_same_or_not():
    assert equal("x", ["a", "b"], ["a", "b"]).is_passed
    assert equal("x", ["a", "c"], ["a", "b"]).worst[0].item == 1
    assert not equal("x", ["a"], ["a", "b"]).is_passed


def test_decisions_differ_where_numbers_within_a_tolerance_fall_on_two_sides():
    found = [np.array([0.5000001, 0.1], np.float32), np.array([0.2, 0.3], np.float32)]
    wanted = [np.array([0.4999999, 0.1], np.float32), np.array([0.2, 0.3], np.float32)]
    assert compare("numbers", found, wanted, 1e-5).is_passed
    at = decided("decisions", found, wanted, 0.5)
    assert not at.is_passed
    assert [one.item for one in at.worst] == [0]
    assert decided("decisions", found, wanted, None).is_passed
    assert not decided("decisions", found, [one[::-1] for one in wanted], None).is_passed
