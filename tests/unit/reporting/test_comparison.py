"""What is worse is found, what is chance is not, and other measurements are not compared."""

import msgspec
import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import InvalidSettingError
from chiasm.reporting.cells import _MIN_REQUESTS, _PER_OPEN, Plan
from chiasm.reporting.comparison import _MIN_VALUES, compare, mann_whitney, read_report
from chiasm.settings import resolve
from tests.unit.reporting.reports import refusal, report, values


def test_the_same_distribution_is_no_regression():
    false_alarms = sum(compare(report(seed=100 * n), report(seed=100 * n + 50), 0.0).is_worse for n in range(20))
    assert false_alarms <= 2, "0.05 over all comparisons of a report"


def test_half_as_fast_is_a_regression_and_twice_as_fast_an_improvement():
    slower = compare(report(100.0), report(200.0, seed=7), 0.1)
    verdicts = {(one.cell, one.what): one.verdict for one in slower.changes}
    assert slower.is_worse
    assert verdicts["1x448", "TTFT"] == "regression"
    assert verdicts["new", "TTFT"] == "same"
    faster = compare(report(200.0), report(100.0, seed=7), 0.1)
    assert not faster.is_worse
    assert {one.verdict for one in faster.changes if one.cell == "1x448"} == {"improvement"}


def test_intervals_hold_the_true_change():
    change = next(one for one in compare(report(100.0), report(130.0, seed=3), 0.1).changes if one.cell == "text")
    assert change.low < 0.3 < change.high


def test_less_than_the_tolerance_is_the_same():
    assert not compare(report(100.0), report(200.0, seed=7), 1.5).is_worse


def test_failures_openings_and_what_is_no_longer_refused_are_findings():
    assert any("failed" in text for text in compare(report(), report(failed=3), 0.1).findings)
    assert not compare(report(failed=3), report(failed=3), 0.1).findings
    taken = compare(report(), report(refusals=(refusal(code=None),)), 0.1)
    assert taken.findings == ("Not refused any more: a file",)
    closed = resolve(environment={}, overrides=["gateway.api_keys=['key']"]).settings
    assert any("callers need no key" in text for text in compare(report(settings=closed), report(), 0.1).findings)


def test_failures_that_become_many_are_a_finding_where_there_were_a_few():
    (text, *_) = compare(report(failed=2), report(failed=20), 0.1).findings
    assert text.endswith("20 of 40 requests failed, before 5%")
    assert not compare(report(failed=10), report(failed=12), 0.1).findings


def test_a_slow_server_has_values_enough_to_be_compared():
    fewest = [1.0 + 0.01 * number for number in range(min(_MIN_REQUESTS, _PER_OPEN))]
    assert len(fewest) >= _MIN_VALUES
    num_comparisons = 3 * (len(Plan().stage_classes(takes_images=True)) + len(Plan().concurrency) + 2)
    assert mann_whitney(fewest, [2 * one for one in fewest]) < 0.05 / num_comparisons


def test_another_load_is_not_compared():
    with pytest.raises(InvalidSettingError, match="another load: output_tokens"):
        compare(report(load={"output_tokens": "8"}), report(load={"output_tokens": "9"}), 0.1)


def test_another_load_is_said_before_anything_is_measured(tmp_path):
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(report(load={"text_tokens": "9"})))
    result = CliRunner().invoke(app, ["report", "http://127.0.0.1:9", "--baseline", str(tmp_path / "r.json")])
    assert isinstance(result.exception, InvalidSettingError)
    assert "another load: text_tokens" in result.exception.message


def test_other_weights_are_said_beside_the_verdict():
    now = report()
    other = msgspec.structs.replace(now, model=msgspec.structs.replace(now.model, model_revision="other"))
    assert "Other weights: before" in compare(other, now, 0.1).method
    assert "Other weights" not in compare(now, now, 0.1).method


def test_reports_survive_the_file(tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(msgspec.json.encode(report()))
    assert read_report(path) == report()


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 5000, b'{"format": 99}', None])
def test_files_that_are_no_reports_are_refused(tmp_path, content):
    path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidSettingError):
        read_report(path)


def test_ranks_give_the_p_of_the_textbook():
    first = [0.8, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
    second = [1.15, 0.88, 0.9, 0.74, 1.21]
    assert mann_whitney(first, second) == pytest.approx(0.2448, abs=0.02)  # exact: 0.2544
    assert mann_whitney([1.0] * 8, [1.0] * 8) == 1.0
    assert mann_whitney(values(1.0), values(10.0)) < 1e-6
