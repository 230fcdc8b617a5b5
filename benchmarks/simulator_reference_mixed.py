"""Texts among requests with a picture: what the encoder's leaving does for them, for loads that nobody printed."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.simulator_reference_model import calibration, fleet, request_class
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import RequestClass, Traffic

_STEP_MS = 4.5
_ROUNDS = 9
_BASE = {
    "media_image_ms": 0.0,
    "media_token_ms": 0.0,
    "in_process": 1.0,
    "engine_by_media": 0.0,
    "resident": 0.0,
    "prefill_by_encoder": 0.0,
    "beside": 1.0,
    "apart": 1.0,
    "hop_ms": 0.0,
    "step_ms": _STEP_MS,
    "prompt_ms": 0.0,
}


def text_reduction(reference: Mapping[str, Any]) -> dict[str, Any]:
    """Of a text's time to first token, at each assumed load, with three published latencies fitted at each."""
    targets = {(one["topology"], one["metric"]): one["value"] for one in reference["records"]}
    mixed = reference["assumptions"]["mixed"]
    rows = [_at(rate, mixed, targets) for rate in mixed["rates_per_device"]]
    afterwards = [_at(rate, mixed, targets) for rate in mixed["rates_tried_afterwards"]]
    kept = [row["reduction_pct"] for row in rows if row["is_fitted"]]
    published = targets["colocated", "text_ttft_reduction"]
    interval = [min(kept), max(kept)] if kept else None
    holds = interval is not None and interval[0] <= published <= interval[1]
    return {
        "published_pct": published,
        "interval_pct": interval,
        "within": holds,
        "by_load": rows,
        "not_judged": afterwards,
    }


def _at(rate: float, mixed: Mapping[str, Any], targets: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Each latency grows with one parameter: the prompt's cost, media work, its slowdown in an engine's process."""
    wanted = {name: targets["colocated", f"{name}_ttft"] for name in ("text", "image")}
    image_ms = targets["aggregated", "image_ttft"]
    at = {"prompt_ms": 0.0, "media_ms": 0.0, "slowdown": 1.0}

    def solve(name: str, topology: str, kind: str, aim: float, high: float) -> None:
        at[name] = _solved(
            lambda one: _ttft(**at | {name: one}, topology=topology, rate=rate, mixed=mixed)[kind], aim, high
        )

    for _ in range(2):
        solve("prompt_ms", "colocated", "text", wanted["text"], 200.0)
        solve("media_ms", "colocated", "image", wanted["image"], 400.0)
    solve("slowdown", "aggregated", "image", image_ms, 20.0)
    prompt_ms, media_ms, slowdown = at.values()
    whole = _ttft(prompt_ms, media_ms, slowdown, "aggregated", rate, mixed)
    beside = _ttft(prompt_ms, media_ms, 1.0, "colocated", rate, mixed)
    pairs = ((beside["text"], wanted["text"]), (beside["image"], wanted["image"]), (whole["image"], image_ms))
    return {
        "rate_per_device": rate,
        "prompt_ms": round(prompt_ms, 2),
        "media_ms": round(media_ms, 2),
        "in_process": round(slowdown, 2),
        "text_aggregated_ms": round(whole["text"], 1),
        "text_colocated_ms": round(beside["text"], 1),
        "reduction_pct": round(100 * (1 - beside["text"] / whole["text"]), 1),
        "is_fitted": all(abs(found / aim - 1) < 0.05 for found, aim in pairs),
    }


def _ttft(
    prompt_ms: float, media_ms: float, slowdown: float, topology: str, rate: float, mixed: Mapping[str, Any]
) -> dict[str, float]:
    """Mean milliseconds to the first token, by class."""
    cluster, _ = fleet(topology)
    pictures = request_class(mixed["images"], mixed["image_tokens"], mixed["output_tokens"], name="image", share=1.0)
    texts = RequestClass(name="text", share=1.0, text_tokens=1, output_tokens=mixed["output_tokens"])
    traffic = Traffic(classes=(texts, pictures), rate_per_s=rate, num_requests=mixed["num_requests"])
    record = simulate(cluster, traffic, _costs(prompt_ms, media_ms, slowdown, topology), policy="round_robin").record
    means = {}
    for index, name in enumerate(record.class_names):
        means[name] = 1e3 * float(record.ttft_s[record.classes == index].mean())
    return means


def _costs(prompt_ms: float, media_ms: float, slowdown: float, topology: str) -> Calibration:
    found = _BASE | {"prompt_ms": prompt_ms, "in_process": slowdown, "media_image_ms": media_ms}
    return calibration(found, topology, 1, 0.0)


def _solved(grows: Callable[[float], float], wanted: float, high: float) -> float:
    """Where a growing function takes a value, by halving."""
    low = 0.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if grows(middle) < wanted else (low, middle)
    return (low + high) / 2
