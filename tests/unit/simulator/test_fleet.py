import numpy as np
import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import Cluster, WorkerSpec, adaptive, aggregated, colocated, disaggregated, split
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import RequestClass, Traffic

COSTS = Calibration(
    request=Cost(fixed_s=0.001),
    media=Cost(fixed_s=0.002, per_unit_s=1e-8),
    encode=Cost(fixed_s=0.003, per_unit_s=1e-4),
    prefill=Cost(fixed_s=0.004, per_unit_s=1e-4),
    step=Cost(fixed_s=0.003, per_unit_s=0.0005),
    context_s=1e-8,
    transfer=Cost(fixed_s=0.002, per_unit_s=1e-6),
    kv_transfer=Cost(fixed_s=0.002, per_unit_s=1e-6),
    max_encode_s=1.0,
)
IMAGES = RequestClass(name="images", num_images=4, output_tokens=32)
TEXTS = RequestClass(name="texts", output_tokens=32)
MIXED = Traffic(classes=(IMAGES, TEXTS), rate_per_s=6.0, num_requests=400, seed=1)
FLEETS = [aggregated(2), adaptive(2), disaggregated(1, 1), colocated(2, encoders=2), split(1, 1, 1)]


@pytest.mark.parametrize("cluster", FLEETS, ids=lambda one: one.name)
@pytest.mark.parametrize("policy", ["round_robin", "least_work", "content", "adaptive"])
def test_every_request_ends_once_in_every_fleet_under_every_policy(cluster, policy):
    record = simulate(cluster, MIXED, COSTS, policy=policy).record
    assert len(record) == 400
    assert sum(record.paths.values()) == 400
    assert (record.ttft_s > 0).all()
    assert (record.e2el_s >= record.ttft_s).all()


def test_the_same_seed_gives_the_same_times_and_another_one_does_not():
    first, again = (simulate(adaptive(2), MIXED, COSTS).record.e2el_s for _ in range(2))
    other = simulate(adaptive(2), Traffic(classes=MIXED.classes, rate_per_s=6.0, num_requests=400, seed=2), COSTS)
    assert (first == again).all()
    assert not np.array_equal(first, other.record.e2el_s)


def test_the_first_token_of_an_idle_fleet_is_the_sum_of_its_stages():
    traffic = Traffic(classes=(IMAGES,), rate_per_s=0.01, arrivals="constant", num_requests=3)
    media_s = 2 * (0.002 + 1e-8 * 448 * 448)  # four pictures on two threads
    pair_s, four_s = 0.003 + 512e-4, 0.003 + 1024e-4
    prompt_s = 3 * 0.004 + (4 * 256 + 64) * 1e-4  # in three steps of at most 512 tokens
    alone = simulate(aggregated(1), traffic, COSTS).record.ttft_s[1:]  # of the first nothing is known of the tower
    assert alone == pytest.approx(0.001 + media_s / 2 + 2 * pair_s + prompt_s, rel=1e-6)  # pairs as they are prepared
    apart = simulate(disaggregated(1, 1), traffic, COSTS).record.ttft_s[1:]
    assert apart == pytest.approx(alone + 0.002 + 1024e-6, rel=1e-6)
    assert four_s < 2 * pair_s


def test_a_text_does_not_wait_for_pictures_where_encoders_are_apart():
    load = Traffic(classes=(IMAGES, TEXTS), rate_per_s=5.0, num_requests=600, seed=4)
    whole, apart = (simulate(fleet, load, COSTS).record for fleet in (aggregated(1), disaggregated(1, 1)))
    waited = [np.mean(one.ttft_s[one.classes == one.class_names.index("texts")]) for one in (whole, apart)]
    assert waited[1] < 0.6 * waited[0]


def test_adaptive_beats_each_worker_for_itself_with_many_pictures():
    many = Traffic(classes=(RequestClass(num_images=8, output_tokens=16),), rate_per_s=0.3, num_requests=200, seed=2)
    fixed, chosen = (simulate(fleet, many, COSTS).record for fleet in (aggregated(2), adaptive(2)))
    assert chosen.ttft_s.mean() < 0.9 * fixed.ttft_s.mean()
    assert chosen.paths.get("e-pd", 0) > 0


def test_pictures_that_come_again_are_not_encoded_again():
    again = RequestClass(num_images=2, repeat_share=0.8, output_tokens=4)
    traffic = Traffic(classes=(again,), rate_per_s=2.0, num_requests=300, seed=1)
    record = simulate(disaggregated(1, 1), traffic, COSTS).record
    assert record.paths["covered"] > 200
    short = record.ttft_s < 0.05
    assert short.mean() > 0.6  # neither their encoding nor their part of the prompt


def test_contexts_bound_what_runs_at_once():
    long = Traffic(classes=(RequestClass(output_tokens=200),), rate_per_s=4.0, num_requests=200, seed=1)
    roomy, tight = (simulate(colocated(1, kv_share=share, kv_tokens=4000), long, COSTS).record for share in (1.0, 0.1))
    assert tight.ttft_s.mean() > 2 * roomy.ttft_s.mean()


def test_a_fleet_without_a_stage_is_refused():
    encoder = Cluster(
        name="eyes", topology="e-pd", workers=(WorkerSpec(name="e", roles=("encode",), device="d"),), cost=1.0
    )
    with pytest.raises(InvalidSettingError, match="nobody for prefill"):
        simulate(encoder, MIXED, COSTS)


def test_stages_are_told():
    spans = []
    traffic = Traffic(classes=(IMAGES,), rate_per_s=1.0, num_requests=2, arrivals="constant")
    simulate(split(1, 1, 1), traffic, COSTS, on_span=lambda *span: spans.append(span))
    assert {(worker, stage) for worker, stage, *_ in spans} == {
        ("encode-0", "encode"), ("prefill-0", "prefill"), ("decode-0", "decode"),
    }  # fmt: skip
    assert all(start_s <= end_s for _, _, start_s, end_s, _ in spans)
    assert {number for *_, number in spans} == {0, 1}
