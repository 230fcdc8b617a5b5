"""What should have come of a trial, compared with what did."""

from collections.abc import Collection

from chiasm.errors import EngineDeadError, RequestCancelledError
from chiasm.faults.client import FINISHED
from chiasm.faults.fault import Fault
from chiasm.faults.meeting import Asked
from chiasm.faults.scenarios.base import Scenario
from chiasm.observability.receipt import Attempt, Receipt
from chiasm.protocol.openai.errors import STATUS


def attempts_of(receipt: Receipt | None) -> tuple[Attempt, ...]:
    """The tries on a receipt."""
    return receipt.route.attempts if receipt is not None and receipt.route is not None else ()


def problems_of_target(scenario: Scenario, fault: Fault, target: Asked) -> list[str]:
    """What is wrong with the end of the target."""
    answer, problems = target.answer, []
    if not fault.num_met:
        problems.append("the fault was never met")
    if answer.outcome != scenario.outcome:
        problems.append(f"the target ended with {answer.outcome}")
    problems += _token_problems(target)
    is_refusal = answer.outcome == scenario.outcome not in (FINISHED, RequestCancelledError.code) and not answer.tokens
    if is_refusal and answer.status != STATUS[answer.outcome]:
        problems.append(f"{answer.outcome} came with status {answer.status}")
    if answer.elapsed_s > scenario.timeout_s:
        problems.append(f"it ended after {answer.elapsed_s:.1f} s, its deadline was {scenario.timeout_s:g} s")
    num_failures = sum(attempt.outcome != "ok" for attempt in attempts_of(target.receipt))
    if not scenario.min_failures <= num_failures <= scenario.max_failures:
        wanted = f"{scenario.min_failures} to {scenario.max_failures}"
        problems.append(f"{num_failures} attempts failed, expected were {wanted}")
    return problems


def problems_of_neighbour(one: Asked, killed: Collection[str]) -> list[str]:
    """What is wrong with a request that should not notice; one whose worker was killed may end with that."""
    workers = {attempt.worker for attempt in attempts_of(one.receipt)}
    is_victim = one.answer.outcome == EngineDeadError.code and bool(workers & set(killed))
    if one.answer.outcome != FINISHED and not is_victim:
        return [f"{one.name} ended with {one.answer.outcome}"]
    return [f"{one.name}: {problem}" for problem in _token_problems(one)]


def _token_problems(asked: Asked) -> list[str]:
    """A finished answer has the right tokens; one that ends early began with them."""
    tokens, is_whole = asked.answer.tokens, asked.answer.outcome == FINISHED
    wanted = asked.right if is_whole else asked.right[: len(tokens)]
    return [] if tokens == wanted else [f"{len(tokens)} tokens are not those of {len(asked.right)} expected"]
