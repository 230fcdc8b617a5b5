"""What is said of a target: an interval that contains it is not hidden behind the median."""

import pytest

from benchmarks.verdicts import judged


@pytest.mark.parametrize(
    ("low", "median", "high", "target", "is_most", "said"),
    [
        (2.5, 2.6, 2.7, 2.5, False, "2.60 (2.50-2.70), target 2.5 met"),
        (2.4, 2.6, 2.8, 2.5, False, "2.60 (2.40-2.80), target 2.5 met by the median; the interval reaches 2.40"),
        (2.3, 2.4, 2.6, 2.5, False, "2.40 (2.30-2.60), target 2.5 **missed**"),
        (0.2, 0.25, 0.3, 0.3, True, "0.25 (0.20-0.30), target 0.3 met"),
        (0.2, 0.25, 0.4, 0.3, True, "0.25 (0.20-0.40), target 0.3 met by the median; the interval reaches 0.40"),
        (0.2, 0.35, 0.4, 0.3, True, "0.35 (0.20-0.40), target 0.3 **missed**"),
        (0.2, 0.35, 0.4, None, False, "0.35 (0.20-0.40)"),
    ],
)
def test_a_verdict_names_how_far_the_interval_reaches(low, median, high, target, is_most, said):
    assert judged({"low": low, "median": median, "high": high}, target, is_most=is_most) == said
