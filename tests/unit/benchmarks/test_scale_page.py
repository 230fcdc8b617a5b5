"""The figures of docs/scale.md are those of the result that it names."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "scale.md").read_text()
FOUND = json.loads((ROOT / "benchmarks" / "results" / "simulator" / "scale.json").read_bytes())


def times(row):
    return f"{row['ttft_mean_ms']}, {row['ttft_p99_ms']} ms"


def with_cover(row):
    return f"{times(row)}, {100 * row['covered_share']:.1f} %"


def line(first, rows, cells):
    """A line of a table: of the whole fleet, then of the one with encoders apart."""
    whole, apart = sorted(rows, key=lambda row: not row["fleet"].startswith("agg"))
    return f"| {first} | {cells(whole)} | {cells(apart)} |"


def chosen(part, **fields):
    return [row for row in FOUND[part] if fields.items() <= row.items()]


@pytest.mark.parametrize("count", [4, 12, 32])
def test_what_looking_at_more_workers_brings_is_as_simulated(count):
    assert line(count, chosen("candidates", candidates=count), times) in PAGE


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        ("1", chosen("candidates", candidates=12)),
        ("8, in turn", chosen("gateways", gateways=8)),
        ("64, in turn", chosen("gateways", gateways=64, keeps_together=False)),
        ("64, what belongs together at one", chosen("gateways", gateways=64, keeps_together=True)),
        ("7 of a cell, likewise", chosen("cell", gateways=7)),
    ],
)
def test_what_more_gateways_lose_is_as_simulated(first, rows):
    assert line(first, rows, with_cover) in PAGE


def test_the_run_is_named():
    assert f"--workers {FOUND['workers']} --requests {FOUND['requests']}" in PAGE.replace("\n", " ")


@pytest.mark.parametrize(("what", "number"), [("worker", 10_000), ("picture", 16_384), ("start", 65_536)])
def test_bytes_are_those_of_the_result(what, number):
    each = FOUND["sizes"][f"bytes_per_{what}"]
    assert f"| {each:,} | {number:,}" in PAGE
    assert f"| {each * number / 1e6:.0f} MB |" in PAGE
