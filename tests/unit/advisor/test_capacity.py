import msgspec
import pytest

from chiasm.advisor.capacity import batch_of, capacity, shape_of
from chiasm.advisor.stages import average, stage_times
from chiasm.simulator.calibration import Calibration, Cost, Sharing
from chiasm.simulator.cluster import aggregated, colocated, disaggregated, on_one_host, split
from chiasm.simulator.run import simulate
from chiasm.simulator.summary import summarise
from chiasm.simulator.traffic import RequestClass, Traffic

COSTS = Calibration(
    request=Cost(fixed_s=0.001),
    media=Cost(fixed_s=0.002, per_unit_s=1e-8),
    encode=Cost(fixed_s=0.003, per_unit_s=1e-4),
    prefill=Cost(fixed_s=0.004, per_unit_s=1e-4),
    step=Cost(fixed_s=0.003, per_unit_s=0.0005),
    transfer=Cost(fixed_s=0.002, per_unit_s=1e-6),
    kv_transfer=Cost(fixed_s=0.002, per_unit_s=1e-6),
)
IMAGES = RequestClass(name="images", num_images=2, output_tokens=33)
TEXT = RequestClass(name="text", output_tokens=33)


def test_work_of_a_request_is_counted_stage_by_stage():
    found = stage_times(IMAGES, COSTS)
    assert found.media == pytest.approx(2 * (0.002 + 1e-8 * 448 * 448))
    assert found.encode == pytest.approx(2 * (0.003 + 256e-4))
    assert found.prefill == pytest.approx(2 * 0.004 + 576e-4)  # two steps of at most 512 tokens
    assert found.decode == pytest.approx(32 * 0.0035)
    assert found.first_token == pytest.approx(0.001 + found.media + found.encode + found.prefill)


def test_pictures_that_come_again_cost_nothing_before_their_prompt_and_nothing_in_it():
    again = msgspec.structs.replace(IMAGES, repeat_share=1.0)
    found = stage_times(again, COSTS)
    assert (found.media, found.encode, found.transfer) == (0.0, 0.0, 0.0)
    assert found.prefill == pytest.approx(0.004 + 64e-4)
    elsewhere = stage_times(msgspec.structs.replace(again, pictures_first=False), COSTS)
    assert elsewhere.prefill == stage_times(IMAGES, COSTS).prefill


def test_a_mix_is_the_average_of_its_classes_by_their_shares():
    mixed = average((msgspec.structs.replace(IMAGES, share=1.0), msgspec.structs.replace(TEXT, share=3.0)), COSTS)
    assert mixed.encode == pytest.approx(stage_times(IMAGES, COSTS).encode / 4)


def test_batches_are_bound_by_slots_or_by_room_for_contexts():
    assert batch_of((TEXT,), COSTS, 0) == 16
    assert batch_of((TEXT,), COSTS, 97 * 5) == 5
    assert batch_of((TEXT,), COSTS, 10) == 1


@pytest.mark.parametrize(
    "cluster", [aggregated(1), disaggregated(1, 1), disaggregated(1, 3), split(1, 1, 1)], ids=lambda one: one.name
)
def test_a_simulated_fleet_keeps_up_below_its_capacity_and_not_above(cluster):
    bears = capacity(shape_of(cluster), (IMAGES,), COSTS)

    def runs(load):
        traffic = Traffic(classes=(IMAGES,), rate_per_s=load * bears.per_s, num_requests=500, seed=1)
        outcome = simulate(cluster, traffic, COSTS)
        return summarise(outcome, media_threads=COSTS.media_threads)

    below, above = runs(0.85), runs(1.3)
    assert below.is_stable
    assert not above.is_stable
    assert above.utilisation[bears.binding] > 0.9
    assert above.throughput_per_s == pytest.approx(bears.per_s, rel=0.15)


def test_encoders_beside_an_engine_cost_it_what_was_measured():
    measured = msgspec.json.decode(b'{"interference": {"resident": 0.5, "prefill_by_encoder": 1.0}}', type=Calibration)
    costs = msgspec.structs.replace(COSTS, interference=measured.interference)
    free = capacity(shape_of(colocated(1)), (TEXT,), msgspec.structs.replace(costs, interference=None))
    taxed = capacity(shape_of(colocated(1)), (TEXT,), costs)
    assert taxed.stages["engine"] < 0.7 * free.stages["engine"]


def test_on_one_host_the_cores_may_bear_less_than_the_stages():
    costs = msgspec.structs.replace(COSTS, sharing=Sharing(num_cores=1, step_cpu=Cost(fixed_s=COSTS.step_s(1))))
    apart, together = (capacity(shape_of(one), (TEXT,), costs) for one in (aggregated(4), on_one_host(aggregated(4))))
    assert "cores" not in apart.stages
    work = average((TEXT,), costs)
    assert together.binding == "cores"
    assert together.per_s < apart.per_s
    assert together.stages["cores"] <= 1 / (work.request + work.prefill)


def test_on_one_host_handing_over_keys_and_values_takes_its_share_of_the_cores():
    costs = msgspec.structs.replace(COSTS, sharing=Sharing(num_cores=2))
    free = msgspec.structs.replace(costs, kv_transfer=Cost())
    cluster = shape_of(on_one_host(split(1, 1, 1)))
    dear_s, free_s = (1.0 / capacity(cluster, (TEXT,), one).stages["cores"] for one in (costs, free))
    assert dear_s - free_s == pytest.approx((0.002 + 64e-6) / 2)
    serving = shape_of(on_one_host(disaggregated(1, 2)))
    assert capacity(serving, (TEXT,), costs) == capacity(serving, (TEXT,), free)


def test_on_one_host_busy_neighbours_and_slower_encoders_take_their_share_of_the_cores():
    def bears(cluster, factor=1.0, **more):
        costs = msgspec.structs.replace(COSTS, encoder_factor=factor, sharing=Sharing(num_cores=2, **more))
        return capacity(shape_of(on_one_host(cluster)), (IMAGES,), costs).stages["cores"]

    assert bears(aggregated(4), contention=0.25) == pytest.approx(bears(aggregated(4)) / 1.25)
    alone_s, slower_s = (1.0 / bears(disaggregated(2, 2), factor) for factor in (1.0, 3.0))
    assert slower_s - alone_s == pytest.approx(2 * stage_times(IMAGES, COSTS).encode / 2)
