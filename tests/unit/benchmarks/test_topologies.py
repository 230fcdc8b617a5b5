"""Questions about topologies: what is asked, and how answers are shown."""

import json

import pytest

from benchmarks.epd import answers, tables, waits
from benchmarks.epd.fleets import ways_of
from benchmarks.epd.intervals import interval, ratio_of_means, ratio_of_medians, ratio_of_p95, verdict
from benchmarks.epd.requests import body, pictures
from benchmarks.topologies import SCENARIOS, parsed
from chiasm.bench.record import Record, StageTimes

RATIO = {"value": 1.1, "low": 1.05, "high": 1.2, "count": 5}


def test_every_scenario_has_a_table():
    assert set(SCENARIOS) == set(tables.SCENARIOS)
    assert parsed(["--scenario", "repeat", "mixed", "--topologies", "auto"]).scenario == ["repeat", "mixed"]
    for wrong in ("", "--scenario repeat mixed --name x", "--scenario answers --images 1 4"):
        with pytest.raises(SystemExit):
            parsed(wrong.split())


def test_topologies_are_compared_with_settings_of_their_own():
    words = ["--scenario", "mixed", "--topologies", "agg", "auto", "--against", "a.b=1", "--against", "a.b=2", "c.d=3"]
    assert ways_of(parsed(words)) == {
        "agg": ("agg",),
        "auto": ("auto",),
        "agg a.b=1": ("agg", "a.b=1"),
        "auto a.b=1": ("auto", "a.b=1"),
        "agg a.b=2 c.d=3": ("agg", "a.b=2", "c.d=3"),
        "auto a.b=2 c.d=3": ("auto", "a.b=2", "c.d=3"),
    }


def test_requests_are_the_same_for_a_seed_and_new_for_another():
    assert pictures("a", 2, 64) == pictures("a", 2, 64)
    assert len({*pictures("a", 2, 64), *pictures("b", 2, 64)}) == 4
    asked = json.loads(body(["data:x"], "What?", 7, video="data:v"))
    assert [part["type"] for part in asked["messages"][0]["content"]] == ["image_url", "video_url", "text"]
    assert (asked["max_tokens"], asked["min_tokens"], asked["stream"]) == (7, 7, True)


def test_ratios_are_those_of_pairs():
    pairs = [(2.0 * number, 1.0 * number) for number in range(1, 40)]
    assert interval(pairs, ratio_of_medians)["value"] == pytest.approx(2.0)
    assert interval(pairs, ratio_of_p95)["high"] >= 2.0


def test_only_requests_that_both_answered_are_compared():
    ours = [answered(20, {"transfer": 0.002}), answered(None), answered(40, {"encode": 0.01})]
    theirs = [answered(10), answered(10), answered(20)]
    assert answers._pairs(ours, theirs, "ttft") == [(0.02, 0.01), (0.04, 0.02)]
    assert answers._share_handed_over(ours) == pytest.approx(1 / 3)


def answered(first_ms, stages_s=None):
    first_ns = None if first_ms is None else first_ms * 1_000_000
    return Record(
        index=0,
        request_class="all",
        kind="chat",
        phase="measured",
        num_body_bytes=1,
        num_wanted_tokens=1,
        scheduled_ns=0,
        sent_ns=0,
        first_ns=first_ns,
        outcome="finished" if first_ns else "timed_out",
        receipt=StageTimes(stages_s=stages_s or {}),
    )


def test_requests_that_wait_for_each_other_say_less():
    pairs = [(2.0 if number // 8 % 2 else 1.0, 1.0) for number in range(240)]
    single, blocks = interval(pairs, ratio_of_means), interval(pairs, ratio_of_means, 8)
    assert single["value"] == blocks["value"] == pytest.approx(1.5)
    assert blocks["high"] - blocks["low"] > 2 * (single["high"] - single["low"])


@pytest.mark.parametrize(("limit", "outcome"), [(1.3, "kept"), (1.1, "open"), (1.0, "broken")])
def test_an_interval_decides_or_not(limit, outcome):
    assert f": {outcome} (1.10, 1.05 to 1.20)" in verdict("TTFT", RATIO, limit)


def test_answers_are_shown():
    ratios = {"auto": RATIO, "auto, media.niceness=5": RATIO | {"value": 1.15}}
    mixed = tables.mixed_table({"rate_per_s": 2.0, "ratios": ratios, "verdicts": ["auto: ... open"]})
    assert "| auto | auto, media.niceness=5 |" in mixed
    assert "| 1.10 (1.05-1.20) | 1.15 (1.05-1.20) |" in mixed
    ms = {"ttft_mean": 20.0, "ttft_p95": 31.26, "e2el_mean": 200.0}
    asked = {"rate_per_s": 9.0, "asked": 3, "against": "agg", "ratios": {"agg": {}, "auto": {"ttft": RATIO}}}
    asked |= {"images": 2, "output": 16, "handed_over": {"agg": 0.0, "auto": 0.5}}
    asked |= {"ms": {"agg": ms, "auto": ms}, "waited_ms": {"agg": 0.5, "auto": 0.25}}
    shown = tables.answers_table(asked)
    assert "2 pictures, answers of 16 tokens, 9.0 requests a second" in shown
    assert "| agg | 20.0 ms | 31.3 ms | 200.0 ms | - | - | 0% | 0.50 ms |" in shown
    assert "| auto | 20.0 ms | 31.3 ms | 200.0 ms | 1.10 (1.05-1.20) | - | 50% | 0.25 ms |" in shown
    repeat = {"ratios": {"auto": RATIO}, "encodes": {"auto": 0.0}, "decodes": {"auto": 0.0}, "verdicts": []}
    assert "| auto | 1.10 (1.05-1.20) | 0 | 0 |" in tables.repeat_table(repeat)
    stages = {f"{kind}{stage}_s": 0.001 for kind in ("", "critical_") for stage in tables.STAGES}
    way = {"images": 1, "is_known": True, "way": "raw", "took_s": 0.02, "decoded": 0.0, "encoded": 0.0}
    shown = tables.forwarding_table({"table": [way | stages | {"cpu encoder": 0.003}]})
    assert "| 1 | yes | raw | 20.0 | 1.0 (1.0) |" in shown


def test_stages_are_shown_where_they_take_time():
    row = {"kind": "1 picture", "topology": "agg", "stages_ms": {"fetch": 1.0, "route": 0.0, "encode": 8.04}}
    row |= {"unaccounted_ms": 0.1, "outside_ms": 0.2, "ttft_ms": 9.34}
    shown = tables.stages_table(
        {"asked": 3, "breakdown": [row | {"before_encoder_share": 0.11, "unaccounted_share": 0.01}]}
    )
    assert "| encode | 8.0 |" in shown
    assert "| before the encoder | 11.0% |" in shown
    assert "route" not in shown


def test_parts_of_the_slowest_add_up_to_their_first_tokens():
    records = [answered(10 + number, {"prefill": 0.004}) for number in range(20)]
    for record in records:
        record.sent_ns = 1_000_000
        record.receipt = StageTimes(ttft_s=0.008, stages_s={"prefill": 0.006 - 0.0005}, unaccounted_s=0.0025)
    found = waits.stages_of([*records, answered(None)])
    assert found["slowest"] == pytest.approx(
        {waits.LATE: 1.0, "prefill": 5.5, waits.UNACCOUNTED: 2.5, waits.OUTSIDE: 28.5 - 9.0}
    )
    assert sum(found["usual"].values()) == pytest.approx(20.0, abs=1.0)


def test_waits_are_those_of_the_time_in_between():
    before, after = {"a": (1.0, 0.5, 10)}, {"a": (1.5, 0.9, 30), "b": (0.2, 0.0, 0)}
    between = waits.waited(before, after)
    assert between == {"a": pytest.approx((0.5, 0.4, 20)), "b": (0.2, 0.0, 0)}
    twice = waits.per_text_ms(waits.added(between, between), 100)
    assert twice["a"] == pytest.approx({"used_ms": 10.0, "waited_ms": 8.0, "each_wait_ms": 20.0})
    assert twice["b"]["each_wait_ms"] == 0.0


def test_the_table_says_first_what_grows_most():
    sides = {
        "alone": {"usual": {"prefill": 3.0}, "slowest": {"prefill": 5.0, "queue": 1.0}},
        "beside": {"usual": {"prefill": 3.5}, "slowest": {"prefill": 6.0, "queue": 4.0}},
    }
    thread = {"used_ms": 1.0, "waited_ms": 0.25, "each_wait_ms": 0.125}
    result = {"rate_per_s": 2.0, "ratios": {"agg": RATIO}, "verdicts": []}
    result |= {
        "stages_ms": {"agg": sides},
        "threads_ms": {"agg": {"alone": {}, "beside": {"gateway: event loop": thread}}},
    }
    lines = tables.mixed_table(result).splitlines()
    assert lines.index("| queue | 0.00 | 0.00 | 1.00 | 4.00 |") < lines.index("| prefill | 3.00 | 3.50 | 5.00 | 6.00 |")
    assert "| gateway: event loop | - | 0.25 (0.12) |" in lines
