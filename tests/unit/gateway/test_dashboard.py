"""The Grafana dashboard asks for metrics that exist, with labels that they have, and its panels do not overlap."""

import json
import re

import pytest

from chiasm.gateway import create_app
from chiasm.observability.receipt import Receipt
from chiasm.protocol.worker import WorkerStats
from chiasm.routing.router import Router
from chiasm.settings import GatewaySettings, RoutingSettings
from tests.architecture.repository import ROOT
from tests.fakes import FakeIngest, FakeWorker
from tools.reference_pages import weighed

DASHBOARD = json.loads((ROOT / "deploy/grafana/chiasm.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def _exported():
    """Sample name -> its labels, of a gateway in front of a fleet."""
    worker = FakeWorker()
    fleet_totals = Router(RoutingSettings()).stats().totals
    stats = WorkerStats(
        **{name: getattr(worker.stats(), name) for name in WorkerStats.__struct_fields__} | {"totals": fleet_totals}
    )
    worker.stats = lambda: stats
    metrics = create_app(worker, FakeIngest(), GatewaySettings()).state.gateway.metrics
    metrics.memory = (weighed(),)
    metrics.receive("chat")
    times = {"ttft_s": 1.0, "e2e_s": 1.0, "stages_s": {"prefill": 1.0}, "unaccounted_s": 0.0, "decode_s": 0.0}
    metrics.end("chat", Receipt(request_id="", model="", outcome="finished", **times))
    return {sample.name: set(sample.labels) for family in metrics.registry.collect() for sample in family.samples}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_metrics_and_labels_exist(expression):
    exported = _exported()
    names = set(re.findall(r"chiasm_\w+", expression))
    assert names
    assert names - set(exported) == set()
    labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    known = set().union(*(exported[name] for name in names))
    assert labels - known - {"instance"} == set()


def test_counters_are_only_read_as_rates_and_levels_never():
    for expression in EXPRESSIONS:
        for name, start in ((match[0], match.start()) for match in re.finditer(r"chiasm_\w+", expression)):
            is_counter = name.endswith(("_total", "_sum", "_count", "_bucket"))
            assert is_counter == expression[:start].endswith("rate("), (name, expression)


def test_brackets_are_balanced():
    for expression in EXPRESSIONS:
        assert all(expression.count(left) == expression.count(right) for left, right in ("()", "[]", "{}"))


def test_panels_have_a_description_and_a_place_of_their_own():
    places = set()
    for panel in PANELS:
        assert panel["description"]
        box = panel["gridPos"]
        cells = {(x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])}
        assert max(x for x, _ in cells) < 24
        assert not places & cells
        places |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
