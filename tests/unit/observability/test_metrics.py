"""Counters add up, levels are read when scraped, names carry units."""

import pytest

from chiasm.observability.metrics import GatewayMetrics
from chiasm.observability.receipt import STAGES, Receipt, Span


def receipt(outcome="finished", ttft_s=0.5, **counts):
    return Receipt(
        request_id="r",
        model="m",
        outcome=outcome,
        ttft_s=ttft_s,
        e2e_s=1.0,
        stages_s={"fetch": 0.2, "prefill": 0.3},
        unaccounted_s=0.0,
        decode_s=0.5,
        **counts,
    )


@pytest.fixture
def levels():
    return {"requests_open": 1.0}


@pytest.fixture
def metrics(levels):
    return GatewayMetrics(lambda: levels, lambda: {"running": 2.0}, lambda: {"steps": 7.0})


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_each_ending_is_counted_once_by_outcome(metrics):
    for outcome in ("finished", "finished", "cancelled"):
        metrics.receive("chat")
        metrics.end("chat", receipt(outcome))
    assert value(metrics, "chiasm_requests_received_total", endpoint="chat") == 3
    assert value(metrics, "chiasm_requests_total", endpoint="chat", outcome="finished") == 2
    assert value(metrics, "chiasm_requests_total", endpoint="chat", outcome="cancelled") == 1


def test_latencies(metrics):
    metrics.end("chat", receipt())
    metrics.end("chat", receipt("engine_dead"))
    metrics.end("chat", receipt("cancelled", ttft_s=None))
    assert value(metrics, "chiasm_ttft_seconds_count", endpoint="chat") == 2
    assert value(metrics, "chiasm_ttft_seconds_sum", endpoint="chat") == 1.0
    assert value(metrics, "chiasm_e2e_seconds_count", endpoint="chat") == 1
    assert value(metrics, "chiasm_stage_seconds_sum", stage="fetch") == pytest.approx(0.4)
    assert value(metrics, "chiasm_stage_seconds_sum", stage="encode") is None


def test_token_counts(metrics):
    counts = {"num_items": 1, "num_prompt_tokens": 2, "num_visual_tokens": 3, "num_cached_tokens": 4,
              "num_output_tokens": 5, "num_cached_embeddings": 6}  # fmt: skip
    metrics.end("chat", receipt(**counts))
    for name, count in counts.items():
        counter = "media_items" if name == "num_items" else name.removeprefix("num_")
        assert value(metrics, f"chiasm_{counter}_total") == count


def test_pictures_of_prompts_that_were_never_computed_are_told_apart(metrics):
    metrics.end("chat", receipt("media_decode_error", num_items=3))
    metrics.end("chat", receipt(num_items=2, num_prompt_tokens=9))
    assert value(metrics, "chiasm_media_items_total") == 5
    assert value(metrics, "chiasm_prompt_media_items_total") == 2


def test_stages_of_a_fleet_are_counted_as_expected_and_as_they_were():
    totals = {"steps": 7.0, "expected_s_encode": 0.5, "actual_s_encode": 0.75}
    metrics = GatewayMetrics(dict, dict, lambda: totals)
    assert value(metrics, "chiasm_stage_expected_seconds_total", stage="encode") == 0.5
    assert value(metrics, "chiasm_stage_actual_seconds_total", stage="encode") == 0.75
    names = {one.name for one in metrics.registry.collect()}
    assert not any("_s_encode" in name for name in names), "once, and by stage"
    totals.clear()
    assert value(metrics, "chiasm_stage_expected_seconds_total", stage="encode") is None


def test_levels_are_read_at_each_scrape(metrics, levels):
    assert value(metrics, "chiasm_requests_open") == 1.0
    levels["requests_open"] = 5.0
    assert value(metrics, "chiasm_requests_open") == 5.0
    assert value(metrics, "chiasm_worker_running") == 2.0
    assert value(metrics, "chiasm_worker_steps_total") == 7.0


def test_registries_are_not_shared(metrics):
    other = GatewayMetrics(dict, dict, dict)
    metrics.receive("chat")
    assert value(other, "chiasm_requests_received_total", endpoint="chat") is None


def test_every_stage_can_be_counted(metrics):
    made = receipt()
    made.stages_s.clear()
    made.stages_s.update(dict.fromkeys(STAGES, 0.1))
    metrics.end("chat", made)
    assert all(value(metrics, "chiasm_stage_seconds_count", stage=stage) == 1 for stage in STAGES)


def test_media_are_timed_by_stage_format_and_size(metrics):
    media = [("jpeg", 300_000), ("png", 4_000_000), ("png", 12_000_000), None]
    spans = [
        Span("fetch", 0.0, 0.5, 0),
        Span("check", 0.25, 0.5, 0),
        Span("decode_media", 0.5, 1.5, 1),
        Span("decode_media", 0.5, 2.5, 2),
        Span("fetch", 1.0, 1.5, 3),  # of an item that came to nothing
        Span("prepare", 1.0, 1.5, 4),  # of no item that is known
        Span("prepare", 1.0, 1.5),
        Span("prefill", 1.0, 1.5, 0),
    ]
    metrics.media(spans, media)
    name = "chiasm_media_seconds_sum"
    assert value(metrics, name, stage="fetch", format="jpeg", size="small") == 0.5
    assert value(metrics, name, stage="check", format="jpeg", size="small") == 0.25
    assert value(metrics, name, stage="decode_media", format="png", size="medium") == 1
    assert value(metrics, name, stage="decode_media", format="png", size="large") == 2
    samples = [one for family in metrics.registry.collect() for one in family.samples]
    assert len([one for one in samples if one.name == "chiasm_media_seconds_count"]) == 4
