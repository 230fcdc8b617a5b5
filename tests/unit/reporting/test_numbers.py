"""Each number names a metric that is exported, a field that a receipt has, or the client; and a file that exists."""

import re

import pytest

from chiasm.observability.receipt import Receipt
from chiasm.reporting.console_numbers import CONSOLE_NUMBERS
from chiasm.reporting.numbers import NUMBERS
from chiasm.routing.router import Router
from chiasm.settings import RoutingSettings
from tests.architecture.repository import ROOT
from tools.reference_pages import metric_names

_ELSEWHERE = {"client", "setting", "GET /v1/models", "GET /debug/state"}
_STATIC = ROOT / "src/chiasm/gateway/console/static"


@pytest.fixture(scope="module")
def exported():
    """The gateway's own names and those of the totals that a local worker and a router have."""
    local = re.findall(r'"(\w+)": ', (ROOT / "src/chiasm/workers/local.py").read_text("utf-8"))
    totals = {*local, *Router(RoutingSettings()).stats().totals}
    return metric_names() | {f"chiasm_worker_{name}_total" for name in totals}


@pytest.mark.parametrize("number", [*NUMBERS.values(), *CONSOLE_NUMBERS.values()], ids=lambda number: number.key)
def test_its_source_and_its_metric_exist(number, exported):
    assert (ROOT / "src/chiasm" / number.source).is_file()
    if number.metric.startswith("chiasm_"):
        assert number.metric in exported
    elif number.metric.startswith("receipt."):
        assert number.metric.removeprefix("receipt.") in Receipt.__struct_fields__
    else:
        assert number.metric in _ELSEWHERE


def test_the_consoles_labels_are_in_its_table():
    script = (_STATIC / "main.js").read_text("utf-8")
    cards = (_STATIC / "workers.js").read_text("utf-8")
    labels = re.findall(r'\btile\("([^"]+)"', script)
    labels += re.findall(r'\[\["?([a-z ]+)", total', script) + re.findall(r', \["([a-z ]+)", total', script)
    labels += re.findall(r'encodes_\w+: "([^"]+)"', script)
    labels += re.findall(r'rows\.push\(\["([^"]+)"', cards) + re.findall(r'^    \["([^"]+)", ', cards, re.MULTILINE)
    assert len(labels) >= 19
    assert set(labels) <= CONSOLE_NUMBERS.keys()


def test_a_receipts_words_are_in_the_consoles_table():
    text = (_STATIC / "receipts.js").read_text("utf-8")
    shown = {name for name in Receipt.__struct_fields__ if f"receipt.{name}" in text} - {
        "request_id", "outcome", "route", "spans", "unaccounted_s", "decode_s",
    }  # fmt: skip
    assert {f"receipt.{name}" for name in shown} <= {one.metric for one in CONSOLE_NUMBERS.values()}
