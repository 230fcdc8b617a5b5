"""Cores that several processes share: processor sharing, in closed form, and against engines that have cores enough."""

import msgspec
import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration, Cost, Sharing
from chiasm.simulator.clock import VirtualTime
from chiasm.simulator.cluster import aggregated, disaggregated
from chiasm.simulator.failures import Failures
from chiasm.simulator.host import OwnCores, SharedCores
from chiasm.simulator.run import Changes, simulate
from chiasm.simulator.traffic import RequestClass, Traffic

COSTS = Calibration(
    request=Cost(fixed_s=0.002),
    media=Cost(fixed_s=0.003),
    encode=Cost(fixed_s=0.010, per_unit_s=1e-4),
    prefill=Cost(fixed_s=0.005, per_unit_s=1e-5),
    step=Cost(fixed_s=0.004, per_unit_s=1e-3),
    transfer=Cost(fixed_s=0.001),
    sharing=Sharing(num_cores=2, request=0.5, step_cpu=Cost(fixed_s=0.004, per_unit_s=2e-3)),
)
TRAFFIC = Traffic(classes=(RequestClass(num_images=2, output_tokens=24),), rate_per_s=8.0, num_requests=400, seed=3)


class Host:
    """Work on shared cores, and when it was done."""

    def __init__(self, num_cores=2.0, contention=0.0):
        self.env = VirtualTime()
        self.cores = SharedCores(self.env, Sharing(num_cores=num_cores, contention=contention))
        self.ends = {}

    def begin(self, name, at_s, seconds, cores=1.0, abandoned_after_s=None):
        def run():
            yield self.env.timeout(at_s)
            work = self.cores.work(seconds, cores)
            work.done.callbacks.append(lambda _: self.ends.__setitem__(name, self.env.now))
            if abandoned_after_s is not None:
                yield self.env.timeout(abandoned_after_s)
                work.abandon()

        self.env.process(run())

    def run(self):
        self.env.run()
        return self.ends


def test_work_within_the_cores_takes_its_time():
    host = Host()
    host.begin("a", 0.0, 1.0)
    host.begin("b", 0.2, 1.0)
    assert host.run() == pytest.approx({"a": 1.0, "b": 1.2})


def test_work_beyond_the_cores_goes_on_in_shares():
    host = Host()
    for name in "abc":
        host.begin(name, 0.0, 1.0)
    host.begin("late", 0.75, 1.0)  # three have half a second each of it; then four at half speed, until 1.75
    assert host.run() == pytest.approx({"a": 1.75, "b": 1.75, "c": 1.75, "late": 2.25})


def test_work_counts_with_the_cores_that_it_uses():
    host = Host()
    host.begin("wide", 0.0, 1.0, cores=3.0)
    host.begin("narrow", 0.0, 0.5, cores=1.0)
    assert host.run() == pytest.approx({"narrow": 1.0, "wide": 1.0 + 0.5 * 1.5})


def test_work_that_is_abandoned_leaves_its_share_and_never_ends():
    host = Host(num_cores=1.0)
    host.begin("a", 0.0, 1.0)
    host.begin("gone", 0.0, 1.0, abandoned_after_s=0.5)
    assert host.run() == pytest.approx({"a": 1.25})


def test_busy_neighbours_slow_work_down_by_what_was_measured():
    sharing = Sharing(num_cores=2, contention=0.2)
    assert [sharing.slowdown_at(cores) for cores in (0.5, 1.0, 1.5, 2.0, 4.0)] == pytest.approx([1, 1, 1.1, 1.2, 2.4])
    host = Host(contention=0.2)
    host.begin("a", 0.0, 1.0)
    host.begin("b", 0.0, 1.0)
    assert host.run() == pytest.approx({"a": 1.2, "b": 1.2})


@pytest.mark.parametrize("make", [OwnCores, lambda env: SharedCores(env, Sharing(num_cores=4))])
def test_progress_and_what_is_left_are_in_undisturbed_seconds(make):
    env = VirtualTime()
    work = make(env).work(1.0)
    env.run(until=0.25)
    assert (work.progress_s, work.left_s(0.75)) == pytest.approx((0.25, 0.5))
    env.run(until=work.done)
    assert work.took_s(1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("make", [OwnCores, lambda env: SharedCores(env, Sharing(num_cores=4))])
@pytest.mark.parametrize(("at_s", "is_over"), [(0.25, False), (1.0, True)])
def test_work_that_is_cut_short_wakes_who_waits_for_it(make, at_s, is_over):
    env = VirtualTime()
    work, woken = make(env).work(1.0), []
    work.done.callbacks.append(lambda _: woken.append(env.now))
    env.run(until=at_s)
    work.cut_short()
    assert woken == []
    env.run(until=env.timeout(0.0))
    assert (woken, work.is_over) == ([at_s], is_over)
    work.abandon()
    env.run()
    assert woken == [at_s]


def on_one_host(cluster):
    return msgspec.structs.replace(cluster, is_one_host=True)


def shared(cores, **more):
    return msgspec.structs.replace(COSTS, sharing=msgspec.structs.replace(COSTS.sharing, num_cores=cores, **more))


def test_on_a_host_with_cores_enough_nothing_changes():
    apart = simulate(aggregated(2), TRAFFIC, COSTS).record
    found = simulate(on_one_host(aggregated(2)), TRAFFIC, shared(64)).record
    assert found.ttft_s == pytest.approx(apart.ttft_s)
    assert found.e2el_s == pytest.approx(apart.e2el_s)


def test_two_engines_that_decode_on_one_core_take_twice_as_long():
    kind = RequestClass(output_tokens=101)
    traffic = Traffic(classes=(kind,), rate_per_s=1e6, arrivals="constant", num_requests=2)
    costs = shared(1, step_cpu=Cost(fixed_s=0.004, per_unit_s=1e-3))
    alone = simulate(aggregated(2), traffic, costs, policy="round_robin").record
    together = simulate(on_one_host(aggregated(2)), traffic, costs, policy="round_robin").record
    assert together.tpot_s == pytest.approx(2 * alone.tpot_s, rel=1e-3)


def test_what_tokens_cost_on_their_way_counts_against_the_cores():
    light, heavy = (
        simulate(on_one_host(aggregated(2)), TRAFFIC, shared(2, step_cpu=Cost(fixed_s=each))).record.tpot_s.mean()
        for each in (0.004, 0.012)
    )
    assert heavy > 1.2 * light


def test_steps_take_longer_beside_an_encoder_of_the_same_host_and_no_other():
    beside = shared(64, step_by_encode=0.5)
    usual, slower, elsewhere = (
        simulate(cluster, TRAFFIC, costs).record.tpot_s.mean()
        for cluster, costs in (
            (on_one_host(disaggregated(1, 1)), shared(64)),
            (on_one_host(disaggregated(1, 1)), beside),
            (disaggregated(1, 1), beside),
        )
    )
    assert usual * 1.02 < slower < usual * 1.6
    assert elsewhere == pytest.approx(usual)


def test_workers_are_busy_for_as_long_as_their_work_takes_on_the_cores_it_gets():
    apart = simulate(disaggregated(1, 1), TRAFFIC, COSTS)
    narrow = simulate(on_one_host(disaggregated(1, 1)), TRAFFIC, shared(0.5))
    for worker, stage in (("encode-0", "media"), ("encode-0", "encode"), ("serve-0", "prefill"), ("serve-0", "decode")):
        alone_s, shared_s = (one.utilisation[worker][stage] * one.elapsed_s for one in (apart, narrow))
        assert shared_s > 1.5 * alone_s, stage


def test_the_same_seed_gives_the_same_times_on_a_shared_host_too():
    first, second = (simulate(on_one_host(disaggregated(1, 1)), TRAFFIC, COSTS).record for _ in range(2))
    assert first.ttft_s.tobytes() == second.ttft_s.tobytes()


def test_every_request_ends_once_where_workers_of_a_shared_host_die():
    changes = Changes(failures=Failures(mean_up_s=3.0, mean_down_s=1.0, seed=1))
    outcome = simulate(on_one_host(aggregated(3)), TRAFFIC, COSTS, changes=changes)
    assert outcome.num_deaths > 0
    assert len(outcome.record) + sum(outcome.record.failures.values()) == TRAFFIC.num_requests


def test_a_shared_host_needs_a_calibration_that_knows_of_it():
    with pytest.raises(InvalidSettingError, match="shared host"):
        simulate(on_one_host(aggregated(2)), TRAFFIC, msgspec.structs.replace(COSTS, sharing=None))


def test_the_context_of_steps_keeps_one_core_busy_besides_what_their_tokens_cost():
    sharing = Sharing(num_cores=2, step_cpu=Cost(fixed_s=0.0015))
    costs = Calibration(step=Cost(fixed_s=0.001), context_s=1e-6, sharing=sharing)
    for context in (0, 1000, 100_000):
        seconds = costs.step_s(1, context)
        assert costs.step_cores(1, seconds, context) * seconds == pytest.approx(0.0015 + 1e-6 * context)
    assert 1.0 < costs.step_cores(1, costs.step_s(1, 100_000), 100_000) < 1.01


def test_cores_besides_the_first_are_busy_from_none_to_all():
    shares = [Sharing(num_cores=3).busy_share(cores) for cores in (0.5, 1.0, 2.0, 3.0, 9.0)]
    assert shares == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])
    assert Sharing(num_cores=1).busy_share(5.0) == 0.0
