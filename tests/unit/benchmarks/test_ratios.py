from benchmarks.ratios import median_ratio


def test_the_ratio_is_taken_within_a_round():
    # a machine that slows down threefold between rounds changes nothing
    ratio = median_ratio([200.0, 66.0, 210.0], [100.0, 33.0, 105.0])
    assert (ratio["median"], ratio["low"], ratio["high"], ratio["rounds"]) == (2.0, 2.0, 2.0, 3)


def test_the_interval_holds_the_median_and_spans_the_rounds():
    ratio = median_ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert ratio["low"] < ratio["median"] == 3.0 < ratio["high"]
    assert (ratio["low"], ratio["high"]) == (1.0, 5.0)


def test_the_interval_is_reproducible():
    assert median_ratio([1.0, 2.0, 4.0], [1.0, 1.5, 2.0]) == median_ratio([1.0, 2.0, 4.0], [1.0, 1.5, 2.0])
