"""What a trial's judge objects to."""

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.faults.client import Answer
from chiasm.faults.fault import Fault
from chiasm.faults.judgement import problems_of_neighbour, problems_of_target
from chiasm.faults.matrix import SCENARIOS, chosen
from chiasm.faults.meeting import Asked
from chiasm.faults.questions import Question, about
from chiasm.faults.scenarios.base import Scenario
from chiasm.observability.receipt import Attempt, Receipt, Route

RIGHT = ["a", "red", "circle"]


def scenario(**fields) -> Scenario:
    return Scenario(name="some", group="embedding", what="", make=lambda _: Fault(), **fields)


def asked(outcome="finished", tokens=("a", "red", "circle"), failures=0, status=200, elapsed_s=1.0) -> Asked:
    attempts = [Attempt(stage="prefill", worker="w", outcome="ok")]
    attempts += [Attempt(stage="encode", worker="v", outcome="transfer_failed")] * failures
    receipt = Receipt(
        request_id="r",
        model="m",
        outcome=outcome,
        ttft_s=None,
        e2e_s=elapsed_s,
        stages_s={},
        unaccounted_s=0.0,
        decode_s=0.0,
        route=Route(path="e-pd", policy="p", attempts=tuple(attempts)),
    )
    answer = Answer(outcome=outcome, status=status, tokens=list(tokens), elapsed_s=elapsed_s)
    return Asked("the target", Question("?"), RIGHT, answer, receipt)


def met() -> Fault:
    fault = Fault()
    fault.num_met = 1
    return fault


REFUSED = {"outcome": "overloaded", "tokens": ()}
TARGETS = {
    "right": ({}, {}, []),
    "recovered": ({"min_failures": 1}, {"failures": 1}, []),
    "refused": ({"outcome": "overloaded"}, REFUSED | {"status": 429}, []),
    "cut off": ({"outcome": "engine_dead"}, {"outcome": "engine_dead", "tokens": ["a"]}, []),
    "left": ({"outcome": "cancelled"}, {"outcome": "cancelled", "tokens": (), "status": 0}, []),
    "another token": ({}, {"tokens": ["a", "blue", "circle"]}, ["tokens"]),
    "a token too few": ({}, {"tokens": ["a", "red"]}, ["tokens"]),
    "a second try shows": ({"outcome": "engine_dead"}, {"outcome": "engine_dead", "tokens": ["a", "a"]}, ["tokens"]),
    "another end": ({"outcome": "overloaded"}, {}, ["ended with finished"]),
    "another status": ({"outcome": "overloaded"}, REFUSED | {"status": 500}, ["status 500"]),
    "no answer": ({}, {"outcome": "no_answer", "tokens": (), "status": 0}, ["ended with no_answer"]),
    "late": ({"timeout_s": 5.0}, {"elapsed_s": 5.1}, ["deadline"]),
    "nothing failed": ({"min_failures": 1}, {}, ["0 attempts failed"]),
    "too much failed": ({"max_failures": 1}, {"failures": 2}, ["2 attempts failed"]),
}


@pytest.mark.parametrize("case", TARGETS)
def test_the_target_is_judged(case):
    fields, answer, wanted = TARGETS[case]
    found = problems_of_target(scenario(**fields), met(), asked(**answer))
    assert len(found) == len(wanted), found
    assert all(word in problem for word, problem in zip(wanted, found, strict=True)), found


def test_a_fault_that_was_not_met_proves_nothing():
    assert problems_of_target(scenario(), Fault(), asked()) == ["the fault was never met"]


def test_a_neighbour_may_fall_with_its_worker_only():
    fallen = asked(outcome="engine_dead", tokens=["a"])
    assert problems_of_neighbour(fallen, {"w"}) == []
    assert problems_of_neighbour(fallen, {"another"}) == ["the target ended with engine_dead"]
    assert problems_of_neighbour(asked(outcome="overloaded", tokens=()), {"w"}) != []
    assert problems_of_neighbour(asked(), ()) == []
    assert problems_of_neighbour(asked(outcome="engine_dead", tokens=["b"]), {"w"}) != []
    assert problems_of_neighbour(asked(tokens=["b"]), ()) != []


def test_trials_are_chosen_by_fault_group_and_topology():
    assert len(chosen([], [])) == sum(len(one.topologies) for one in SCENARIOS)
    assert {(where, one.name) for where, one in chosen(["kv-full"], [])} == {("e-p-d", "kv-full")}
    assert {one.group for _, one in chosen(["metadata"], ["auto"])} == {"metadata"}
    with pytest.raises(InvalidSettingError, match="No such fault: gremlins"):
        chosen(["gremlins"], [])
    with pytest.raises(InvalidSettingError, match="No such topology: ring"):
        chosen([], ["ring"])


def test_names_of_faults_are_told_apart():
    names = [one.name for one in SCENARIOS] + list({one.group for one in SCENARIOS})
    assert len(names) == len(set(names))


def test_every_number_is_another_picture():
    identities = [about((number,)).identities for number in range(1000)]
    assert len(set(identities)) == 1000
