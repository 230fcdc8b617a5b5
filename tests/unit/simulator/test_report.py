from html.parser import HTMLParser

import msgspec
import pytest

from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated, disaggregated
from chiasm.simulator.compare import compare
from chiasm.simulator.report.charts import Tail, tails, uses
from chiasm.simulator.report.page import html_of, markdown_of
from chiasm.simulator.summary import Objective
from chiasm.simulator.traffic import RequestClass, Traffic

COSTS = Calibration(source="<made> up", encode=Cost(fixed_s=0.02), prefill=Cost(fixed_s=0.01), step=Cost(fixed_s=0.005))
CLASSES = (RequestClass(name="<b>images</b>", num_images=2, output_tokens=9), RequestClass(name="text"))


def summaries(rate_per_s=2.0):
    traffic = Traffic(classes=CLASSES, rate_per_s=rate_per_s, num_requests=120)
    return list(compare([aggregated(1), disaggregated(1, 1)], traffic, COSTS))


class Balance(HTMLParser):
    """Whether every element that is opened is closed, and what text there is."""

    VOID = frozenset({"meta"})

    def __init__(self, page):
        super().__init__()
        self.open, self.words, self.links = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """It closes itself."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_whole_and_needs_nothing_from_elsewhere():
    text = html_of(summaries(), Objective(ttft_s=0.3), ["Stage costs: <made> up."])
    assert "default-src 'none'" in text
    page = Balance(text)
    assert page.open == []
    assert page.links == []
    assert "Stage costs: <made> up." in page.words
    assert "<b>images</b>: time to the first token" in page.words


def test_every_fleet_and_class_has_a_row_with_its_numbers():
    found = summaries()
    rows = [line for line in markdown_of(found).splitlines() if line.startswith("| agg") or line.startswith("| 1E")]
    assert len(rows) == 4
    first = found[0].classes[0]
    assert f"| {1e3 * first.ttft_s.mean:.0f} | {1e3 * first.ttft_s.p50:.0f} |" in rows[0]


def test_a_fleet_that_does_not_keep_up_is_drawn_as_that():
    page = html_of(summaries(rate_per_s=500.0), Objective())
    assert "does not keep up" in page


@pytest.mark.parametrize("slo_ms", [float("inf"), 50.0])
def test_bars_are_as_long_as_their_numbers_say(slo_ms):
    drawn = tails("t", [Tail("a", 40.0, 60.0, 70.0, 80.0), Tail("b", 20.0, 30.0, 35.0, 40.0)], slo_ms)
    widths = [float(part.split('width="')[1].split('"')[0]) for part in drawn.split("<rect")[1:]]
    assert widths == pytest.approx([266.0, 133.0, 133.0, 66.5], abs=0.1)
    assert ("slo" in drawn) == (slo_ms == 50.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.34, "12.3"), (999.7, "1000"), (9_999.0, "9999"), (12_345.0, "12.3 s"), (5e6, "5000 s")],
)
def test_times_have_no_exponent(value, text):
    assert f">{text} / {text}<" in tails("t", [Tail("a", value, value, value, value)])


def test_a_fleet_has_one_goodput_and_names_break_no_row():
    found = summaries()
    rows = [line for line in markdown_of(found).splitlines() if line.startswith("| agg")]
    assert [row.split(" | ")[-1] for row in rows] == [f"{found[0].goodput_per_s:.2f} |", " |"]
    assert "<b>" not in markdown_of(found)
    odd = msgspec.structs.replace(found[0].classes[0], name="a|b\nc")
    (row,) = [
        line
        for line in markdown_of([msgspec.structs.replace(found[0], classes=(odd,))]).splitlines()
        if "a" in line and line.startswith("| agg")
    ]
    assert "| a\\|b c |" in row


def test_there_is_a_chart_of_nothing():
    assert Balance(uses("none", [])).open == []
