"""The simulation against what queueing theory knows exactly."""

from math import factorial

import numpy as np
import pytest

from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import RequestClass, Traffic

SERVICE_S = 0.1
TINY = Cost(fixed_s=1e-9, per_unit_s=0.0)


def media_only(threads: int) -> Calibration:
    """Nothing takes time but the media threads: `SERVICE_S` for each picture of mean size."""
    return Calibration(media=Cost(per_unit_s=SERVICE_S / 1000), media_threads=threads, prefill=TINY, step=TINY)


def pictures(spread: str, load: float, threads: int, arrivals: str, num_requests: int) -> Traffic:
    kind = RequestClass(num_images=1, num_pixels=1000, pixel_spread=spread, visual_tokens=1, output_tokens=1)
    rate_per_s = load * threads / SERVICE_S
    return Traffic(classes=(kind,), rate_per_s=rate_per_s, arrivals=arrivals, num_requests=num_requests, seed=3)


def test_constant_arrivals_faster_than_service_wait_longer_and_longer():
    outcome = simulate(aggregated(1), pictures("constant", 1.25, 1, "constant", 50), media_only(1))
    gap_s = SERVICE_S / 1.25
    expected = SERVICE_S + np.arange(50) * (SERVICE_S - gap_s)
    assert outcome.record.ttft_s == pytest.approx(expected, rel=1e-6)


def test_constant_arrivals_slower_than_service_never_wait():
    outcome = simulate(aggregated(1), pictures("constant", 0.95, 1, "constant", 50), media_only(1))
    assert outcome.record.ttft_s == pytest.approx(SERVICE_S, rel=1e-6)


def test_poisson_arrivals_and_constant_service_wait_as_pollaczek_and_khinchin_say():
    load = 0.7
    outcome = simulate(aggregated(1), pictures("constant", load, 1, "poisson", 4_000), media_only(1))
    wait_s = load * SERVICE_S / (2 * (1 - load))
    assert outcome.record.ttft_s.mean() == pytest.approx(SERVICE_S + wait_s, rel=0.08)


@pytest.mark.parametrize("threads", [1, 3])
def test_poisson_arrivals_and_exponential_service_wait_as_erlang_says(threads):
    load = 0.6
    outcome = simulate(aggregated(1), pictures("exponential", load, threads, "poisson", 1_500), media_only(threads))
    offered = load * threads
    waits = offered**threads / factorial(threads) / (1 - load)
    share_waiting = waits / (sum(offered**k / factorial(k) for k in range(threads)) + waits)
    wait_s = share_waiting * SERVICE_S / (threads * (1 - load))
    assert outcome.record.ttft_s.mean() == pytest.approx(SERVICE_S + wait_s, rel=0.1)


def test_an_engine_with_one_slot_is_a_server_with_constant_service():
    num_tokens, load = 11, 0.7
    calibration = Calibration(
        prefill=Cost(fixed_s=0.02), step=Cost(fixed_s=0.008, per_unit_s=0.0), max_running=1, max_step_tokens=512
    )
    service_s = 0.02 + (num_tokens - 1) * 0.008
    kind = RequestClass(output_tokens=num_tokens)
    traffic = Traffic(classes=(kind,), rate_per_s=load / service_s, num_requests=4_000, seed=5)
    outcome = simulate(aggregated(1), traffic, calibration)
    wait_s = load * service_s / (2 * (1 - load))
    assert outcome.record.e2el_s.mean() == pytest.approx(service_s + wait_s, rel=0.08)
    assert outcome.record.tpot_s == pytest.approx(0.008, rel=1e-6)


def test_requests_under_way_are_rate_times_latency():
    traffic = pictures("exponential", 0.6, 2, "poisson", 1_500)
    outcome = simulate(aggregated(1), traffic, media_only(2))
    rate_per_s = len(outcome.record) / outcome.elapsed_s
    assert outcome.mean_open == pytest.approx(rate_per_s * outcome.record.e2el_s.mean(), rel=1e-6)


def test_threads_are_busy_for_the_load_that_is_offered():
    outcome = simulate(aggregated(1), pictures("exponential", 0.6, 2, "poisson", 1_500), media_only(2))
    assert outcome.utilisation["worker-0"]["media"] == pytest.approx(2 * 0.6, rel=0.08)
