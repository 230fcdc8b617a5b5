"""What the load generator was measured to do is shown."""

from benchmarks import render
from tests.unit.benchmarks.test_render import MACHINE

LOAD = {
    "machine": MACHINE,
    "allowed": "1 % + 0.3 ms",
    "accuracy": [
        {
            name: {"told_ms": 100.0, "p50_ms": 100.2 if name == "ttft" else 150.0, "is_allowed": name == "ttft"}
            for name in ("ttft", "wire_ttft", "tpot")
        }
    ],
    "stall": {"stall_s": 2.0, "came_in_the_stall": 100.0, "waited_more_than_50_ms": 98, "longest_s": 2.0},
    "sustained": {
        "asked_per_s": 2000,
        "served_per_s": 1127.1,
        "client_cpu_share": 0.28,
        "lag_p99_ms": 0.26,
        "problems": [],
    },
    "cost": {
        "text": {
            "requests_per_s": 1097.0,
            "body_mb_per_s": 0.5,
            "requests_per_s_and_core": 13467.0,
            "body_mb_per_s_and_core": 6.8,
        }
    },
    "cpu_ms_per_request": {"chiasm bench": 0.23, "aiohttp": 0.47},
}


def test_what_was_told_is_beside_what_was_reported():
    shown = render.section(LOAD)
    assert "| ttft | 100 ms | 100.20 ms | met |" in shown
    assert "| tpot | 100 ms | 150.00 ms | **missed** |" in shown
    assert "lag of 0.26 ms" in shown
    assert "| text | 1,097 |" in shown


def test_two_tools_agree_or_not():
    figures = {
        "time_to_first_token": {"chiasm_bench_ms": 9.0, "aiperf_ms": 9.1, "agree": True},
        "request_latency": {"chiasm_bench_ms": 9.0, "aiperf_ms": 19.1, "agree": False},
    }
    shown = render.section({"machine": MACHINE, "rounds": [{}], "figures": figures, "problem": ""})
    assert "| time_to_first_token | 9.00 ms | 9.10 ms | agree |" in shown
    assert "**differ**" in shown
    assert "AIPerf reads all files" in shown
