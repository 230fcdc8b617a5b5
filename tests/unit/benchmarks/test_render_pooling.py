"""Targets of pooling are held against the best peer, and against both paths."""

import pytest

from benchmarks.render_pooling import PEERS, pooling_section

SPEEDS = {"hf_fixed": 6.0, "hf_dynamic_4": 1.9, "hf_dynamic_8": 1.4, "hf_dynamic_20": 1.6, "infinity": 1.5, "vllm": 1.1}


def ratio(median):
    return {"median": median, "low": median - 0.1, "high": median + 0.1, "rounds": 3}


def peers_result():
    figures = {"pairs_per_s": 50.0, "p50_s": 0.4, "p95_s": 0.5, "cpu_s_per_pair": 0.02}
    ratios = {name: {"speed": ratio(one), "speed_by_cpu": ratio(one)} for name, one in SPEEDS.items()}
    entry = {"medians": dict.fromkeys(["chiasm", *SPEEDS], figures), "ratios": ratios}
    versions = {"chiasm": {"chiasm": "0.1"}, "vllm": {"vllm": "0.32"}}
    return {"dtype": "float32", "threads": 2, "versions": versions, "summary": {"16 callers": entry}}


def row(text, name):
    return next(line for line in text.splitlines() if f"| {PEERS[name]} |" in line)


def test_only_fixed_padding_the_best_dynamic_one_and_the_best_other_peer_have_targets():
    text = pooling_section(peers_result(), "conditions\n")
    assert "target 5 met" in row(text, "hf_fixed")
    assert "target 1.3 met" in row(text, "hf_dynamic_8")
    assert "target 1.2 **missed**" in row(text, "vllm")
    assert all("target" not in row(text, name) for name in ("hf_dynamic_4", "hf_dynamic_20", "infinity", "chiasm"))


@pytest.mark.parametrize(
    ("what", "throughput", "p50", "said"),
    [
        ("text", 3.6, 0.25, ("target 3.5 met", "target 0.3 met")),
        ("pictures", 3.6, 0.35, ("target 4 **missed**", "target 0.3 **missed**")),
    ],
)
def test_one_endpoint_is_held_against_its_targets(what, throughput, p50, said):
    figures = {"calls_per_s": 2.0, "p50_s": 0.4, "p95_s": 0.5}
    entry = {
        "medians": {"single endpoint": figures, "two hops": figures},
        "throughput": ratio(throughput),
        "p50": ratio(p50),
    }
    summary = {"1 callers": entry, "16 callers": entry}
    text = pooling_section({"what": what, "items_a_call": 20, "threads": 2, "summary": summary}, "conditions\n")
    assert all(one in text for one in said)
    assert text.count("target 0.3") == 1


def test_the_fast_way_has_a_row_of_its_own_with_what_it_moves():
    figures = {"calls_per_s": 2.0, "p50_s": 0.4, "p95_s": 0.5}
    entry = {
        "medians": {"single endpoint": figures, "single endpoint, fast": figures, "two hops": figures},
        "throughput": ratio(3.6),
        "p50": ratio(0.35),
        "fast": {"throughput": ratio(4.5), "p50": ratio(0.25), "largest_difference": 7e-5},
    }
    result = {"what": "pictures", "items_a_call": 4, "threads": 2, "summary": {"16 callers": entry}}
    text = pooling_section(result, "conditions\n")
    exact, fast = (line for line in text.splitlines() if line.startswith("| 16 callers"))
    assert "target 4 **missed**" in exact
    assert "target 4 met" in fast
    assert "target 0.3 met" in fast
    assert "at most 7e-05 from the two hops'" in text


def test_a_soak_says_what_came_of_all_requests_and_what_stays():
    result = {
        "command": {"model": "pictures", "clients": 16},
        "requests": 100,
        "ends": {"finished": 94, "plugin_failed": 1, "cancelled": 5},
        "different_answers": 2,
        "stays": {"open in the worker": 0, "states of processors": 3},
        "memory": [[0, 5 * 10**6], [50, 7 * 10**6], [100, 8 * 10**6]],
        "rss_bytes_per_request": 12.34,
        "wrong": ["something stays"],
    }
    text = pooling_section(result, "conditions\n")
    assert "an image ranker" in text
    assert "5 cancelled, 94 finished, 1 plugin_failed" in text
    assert "request alone: 2. Left of all of them: 3 states of processors." in text
    assert "7.0 MB halfway, 8.0 MB in the end, +12.3 bytes a request. Wrong: something stays." in text
