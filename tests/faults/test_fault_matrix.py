"""The fault matrix: completely where faults are injected in one process, in part where worker processes are killed."""

import pytest

from chiasm.faults.matrix import AFTERWARDS, chosen, run_matrix
from chiasm.settings import resolve

IN_PROCESS = ("embedding", "late", "metadata", "kv", "client")
KILLS = ("encoder-killed-in-transfer", "prefill-killed", "decode-killed-in-stream")

pytestmark = pytest.mark.timeout(900)


async def verdicts_of(trials):
    return [one async for one in run_matrix(trials, resolve(environment={}).settings, lambda name, where: None)]


async def assert_all_are_good(trials):
    verdicts = await verdicts_of(trials)
    bad = {(one.topology, one.fault): (one.outcome, one.attempts, one.problems) for one in verdicts if not one.is_good}
    assert bad == {}
    tried = sorted((one.topology, one.fault) for one in verdicts if one.fault != AFTERWARDS)
    assert tried == sorted((topology, scenario.name) for topology, scenario in trials)
    assert {one.topology for one in verdicts if one.fault == AFTERWARDS} == {topology for topology, _ in trials}


async def test_faults_between_workers_and_clients_that_leave_hurt_nobody_else():
    await assert_all_are_good(chosen(IN_PROCESS, []))


@pytest.mark.slow
async def test_killed_workers_cost_at_most_the_requests_that_they_had():
    await assert_all_are_good(chosen(KILLS, ["e-pd"]))


async def test_a_fleet_that_believes_whatever_arrives_is_found_out(monkeypatch):
    monkeypatch.setattr("chiasm.workers.embeddings.check_embedding", lambda metadata, data, expected: None)
    verdicts = await verdicts_of(chosen(["embedding-corrupted"], ["e-pd"]))
    assert [one.is_good for one in verdicts] == [False, True]
    assert verdicts[0].problems
