"""What work takes of shared cores, from questions whose CPU seconds are known."""

import os
import socket
import subprocess
import sys

import pytest

from chiasm.advisor.profile import processes
from chiasm.advisor.profile.sharing import CoreUse, Marginal, with_contention, worker_of
from chiasm.bench.target import parse_target
from chiasm.observability.receipt import Attempt, Receipt, Route
from chiasm.simulator.calibration import Calibration, Cost, Sharing

REQUEST_CPU_S, PREFILL_CORES, ENCODE_CORES, CONTEXT_S = 0.004, 1.5, 2.0, 1e-7


class Known:
    names = ("gateway", "worker 1", "worker 2", "client")
    num_started = 2

    def cpu_s(self):
        return 7.0


def receipt(worker="", num_output_tokens=48):
    attempts = (
        Attempt(stage="encode", worker="e", outcome="ok"),
        Attempt(stage="generate", worker="dead", outcome="engine_dead"),
        Attempt(stage="generate", worker=worker, outcome="ok"),
    )
    return Receipt(
        request_id="r", model="m", outcome="finished", ttft_s=0.01, e2e_s=0.1, stages_s={}, unaccounted_s=0.0,
        decode_s=0.1, num_output_tokens=num_output_tokens,
        route=Route(path="p", policy="x", attempts=attempts) if worker else None,
    )  # fmt: skip


def used(monkeypatch, *, num_cores=4, step_cpu_s=lambda count: 0.0005 + 0.0002 * count, slower=1.0):
    monkeypatch.setattr("chiasm.advisor.profile.sharing.num_cores", lambda: num_cores)
    use = CoreUse(Known())
    for prefill_s in (0.002, 0.005, 0.01):
        use.text(prefill_s, REQUEST_CPU_S + PREFILL_CORES * prefill_s)
    for work_s in (0.01, 0.05, 0.1):
        use.picture(work_s, 0.01, REQUEST_CPU_S + PREFILL_CORES * 0.01 + ENCODE_CORES * work_s)
    for running, workers in ((1, 1), (4, 1), (1, 2)):
        names = frozenset(f"w{number}" for number in range(workers))
        seconds = 0.0008 * (slower if workers == 2 else 1.0)
        cpu_s = step_cpu_s(running) + CONTEXT_S * 100 * running
        use.step(Marginal(workers=names, running=running, context=100 * running, seconds=seconds, cpu_s=cpu_s))
    return use


def test_cores_in_use_are_found_by_stage(monkeypatch):
    found = used(monkeypatch).sharing(request_s=0.008, context_s=CONTEXT_S)
    assert found.num_cores == 4
    assert found.request == pytest.approx(REQUEST_CPU_S / 0.008)
    assert found.prefill == pytest.approx(PREFILL_CORES)
    assert found.encode == pytest.approx(ENCODE_CORES)
    assert (found.step_cpu.fixed_s, found.step_cpu.per_unit_s) == pytest.approx((0.0005, 0.0002))
    assert found.processes == Known.names


def test_a_lone_answer_takes_what_it_takes_and_not_what_the_line_through_the_others_says(monkeypatch):
    monkeypatch.setattr("chiasm.advisor.profile.sharing.num_cores", lambda: 2)
    use = CoreUse(Known())
    use.text(0.002, REQUEST_CPU_S)
    for running, cpu_s in ((1, 0.0006), (2, 0.0006), (4, 0.0008)):
        use.step(Marginal(workers=frozenset({"w"}), running=running, context=0, seconds=0.0004, cpu_s=cpu_s))
    found = use.sharing(0.008)
    assert [found.step_cpu_s(running) for running in (1, 2, 4, 8)] == pytest.approx([0.0006, 0.0006, 0.0008, 0.0012])
    halved = found.with_step_cpu(lambda cost: Cost(fixed_s=cost.fixed_s / 2, per_unit_s=cost.per_unit_s / 2))
    assert [halved.step_cpu_s(running) for running in (1, 4)] == pytest.approx([0.0003, 0.0004])
    fewer = found.with_step_cpu(lambda cost: Cost(fixed_s=cost.fixed_s / 2, per_unit_s=cost.per_unit_s))
    assert fewer.step_cpu_s(1) == pytest.approx(0.0006 * 0.0003 / 0.0005), "what comes with each answer stays"
    assert Sharing(num_cores=2, lone_step_cpu_s=0.001).with_step_cpu(lambda cost: cost).step_cpu_s(1) == 0.001


def test_two_workers_that_slow_each_other_down_beyond_their_shares_show_it(monkeypatch):
    assert used(monkeypatch).sharing(0.008).contention == 0.0
    use = used(monkeypatch, num_cores=2, step_cpu_s=lambda count: 0.0008 * count - CONTEXT_S * 100, slower=1.3)
    assert use.contention == pytest.approx([0.3])
    assert use.sharing(0.008).contention == pytest.approx(0.3)


def test_what_sharing_the_cores_explains_is_no_contention(monkeypatch):
    use = used(monkeypatch, num_cores=2, step_cpu_s=lambda count: 0.0012 * count - CONTEXT_S * 100, slower=1.5)
    assert use.contention == pytest.approx([0.0], abs=1e-6)


def test_contention_that_a_step_alone_has_in_it_is_not_counted_twice(monkeypatch):
    """True steps take 0.8 ms and keep 1.5 of 2 cores busy; all cores busy slow work down by 40 %."""
    alone_s, pair_s = 0.0008 * 1.2, 0.0008 * 1.5 * 1.4
    monkeypatch.setattr("chiasm.advisor.profile.sharing.num_cores", lambda: 2)
    use = CoreUse(Known())
    use.text(0.002, REQUEST_CPU_S)
    for workers, seconds in (({"w0"}, alone_s), ({"w0", "w1"}, pair_s)):
        use.step(Marginal(workers=frozenset(workers), running=1, context=0, seconds=seconds, cpu_s=1.5 * alone_s))
    assert use.contention == pytest.approx([0.4])
    seen = Calibration(step=Cost(fixed_s=alone_s), sharing=use.sharing(REQUEST_CPU_S))
    costs = with_contention(seen, 0.4)
    assert costs.step_s(1) == pytest.approx(0.0008)
    for count, seconds in ((1, alone_s), (2, pair_s)):
        cores = count * costs.step_cores(1, costs.step_s(1))
        assert costs.step_s(1) * costs.sharing.slowdown_at(cores) == pytest.approx(seconds)


def test_contention_is_taken_out_of_what_grows_with_the_square_too():
    sharing = Sharing(num_cores=2, prefill=2.0, encode=1.5)
    seen = Calibration(sharing=sharing, prefill_quadratic_s=1e-6, encode_quadratic_s=1e-6)
    costs = with_contention(seen, 0.4)
    assert costs.prefill_s(100) == pytest.approx(seen.prefill_s(100) / 1.4)
    assert costs.encode_s([100]) == pytest.approx(seen.encode_s([100]) / 1.2)


@pytest.mark.parametrize("num_cores", [1, 4])
def test_where_cores_are_idle_or_there_is_one_contention_is_not_to_be_told(monkeypatch, num_cores):
    use = used(monkeypatch, num_cores=num_cores, step_cpu_s=lambda count: 0.0003 * count, slower=3.0)
    assert use.contention == ()
    assert use.sharing(0.008).contention == 0.0


def test_of_processes_that_are_not_to_be_seen_nothing_is_said():
    use = CoreUse(None)
    use.text(0.01, 0.0)
    assert use.cpu_s() == 0.0
    assert use.sharing(0.01) is None
    assert use.fits == {}


def test_of_workers_that_the_server_did_not_start_nothing_is_said(monkeypatch):
    monkeypatch.setattr(Known, "num_started", 1)
    use = used(monkeypatch, num_cores=2, step_cpu_s=lambda count: 0.0008 * count, slower=1.3)
    assert use.sharing(0.008) is None
    assert (use.fits, use.contention) == ({}, ())


def test_who_generated_is_the_last_that_did():
    assert worker_of(receipt("w1")) == "w1"
    assert worker_of(receipt()) == ""


LISTENING = """
import socket, subprocess, sys, time
listener = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([sys.executable, "-c", "sum(range(3_000_000)); input()"], stdin=subprocess.PIPE)
print(listener.getsockname()[1], flush=True)
input()
child.communicate(b"\\n")
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="reads Linux's /proc")  # noqa: PTH112
def test_the_processes_of_a_server_of_this_machine_are_found_and_counted():
    server = subprocess.Popen(
        [sys.executable, "-c", LISTENING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(server.stdout.readline())
        found = processes.processes_of(parse_target(f"http://127.0.0.1:{port}"))
        assert (found.names, found.num_started) == (("gateway", "worker 1", "client"), 1)
        before_s = found.cpu_s()
        sum(range(2_000_000))
        assert found.cpu_s() > before_s
    finally:
        server.communicate("\n", timeout=30)
    assert processes.processes_of(parse_target(f"http://127.0.0.1:{port}")) is None


def test_a_server_elsewhere_is_not_looked_for():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert processes.processes_of(parse_target(f"http://192.0.2.1:{port}")) is None
        assert processes.processes_of(parse_target(f"http://example.invalid:{port}")) is None
        assert processes.processes_of(parse_target(f"http://localhost:{port}")) is not None
