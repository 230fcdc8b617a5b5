"""Every metric says what it means."""

import pytest

from tools.reference_pages import _metrics


@pytest.mark.parametrize("metric", list(_metrics()), ids=lambda metric: metric.name)
def test_a_metric_says_more_than_its_name(metric):
    words = metric.name.removeprefix("chiasm_").removeprefix("worker_").replace("_", " ")
    assert metric.documentation.rstrip(".") != words
    assert "counted by the engine" not in metric.documentation
    assert metric.documentation.endswith(".")
