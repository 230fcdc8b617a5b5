"""The advice: what to do, why in numbers, what would change it, and whether the numbers tell at all."""

from collections.abc import Callable, Sequence

import msgspec

from chiasm.advisor.candidates import candidates
from chiasm.advisor.capacity import Capacity, capacity, shape_of
from chiasm.advisor.evaluate import Aim, Gap, Trial, evaluate, gap, ranked
from chiasm.advisor.flips import flips
from chiasm.advisor.question import Question
from chiasm.advisor.reasons import reasons
from chiasm.advisor.stages import StageTimes, average
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import on_one_host

SIMULATOR_ERROR = 0.05
"""Of a ratio between two fleets: root mean square over published end-to-end gains that no fit had seen, see
docs/advisor.md. A lead of less than twice that decides nothing.
"""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        choice: The fleet to take; the simplest one when `is_clear` is False.
        is_clear: Whether its lead is more than chance and twice the simulator's error, or nobody else keeps up.
        headline: The advice in a sentence.
        reasons: Why, in the order in which it was thought.
        lead: Of the best over the runner-up; None where one of them does not keep up with the traffic.
        over_unsplit: Of the choice over the fleet that splits nothing; None as for `lead`.
        break_even_tokens: Length of answers from which the unsplit fleet ends them sooner: least and most over the
            runs; infinite where it never does, None where the choice splits nothing or unsplit does not keep up.
        flips: Changes of the traffic or the costs that would change the choice, and to what; None when none was
            tried.
    """

    choice: str
    is_clear: bool
    headline: str
    reasons: tuple[str, ...]
    runner_up: str
    lead: Gap | None
    over_unsplit: Gap | None
    break_even_tokens: tuple[float, float] | None
    flips: tuple[str, ...] | None
    work: StageTimes
    capacities: dict[str, Capacity]
    trials: tuple[Trial, ...]


def advise(question: Question, costs: Calibration, on_run: Callable[[str], None] = lambda _: None) -> Advice:
    """Think it through. `on_run` hears of every simulation that begins.

    Raises:
        InvalidSettingError: The fleets are to be on one host, and the costs do not say what that comes to.
    """
    traffic, aim = question.traffic, question.aim
    fleets = candidates(question.num_devices, traffic.classes, costs, question.tier)
    fleets = [on_one_host(one) for one in fleets] if question.is_one_host else fleets
    trials = evaluate(
        fleets,
        traffic,
        costs,
        num_seeds=question.num_seeds,
        objective=question.objective,
        trace=question.trace,
        on_run=on_run,
    )
    order = ranked(trials, aim)
    best, unsplit = order[0], trials[0]
    lead = _gap(best, order[1], aim) if len(order) > 1 else None
    is_clear = lead is None or _decides(lead)
    choice = best if is_clear else _simplest(trials, best, aim)
    capacities = {one.name: capacity(shape_of(one), traffic.classes, costs) for one in fleets}
    work = average(traffic.classes, costs)
    return Advice(
        choice=choice.cluster.name,
        is_clear=is_clear,
        headline=_headline(choice, order, is_clear=is_clear),
        reasons=tuple(reasons(question, costs, work, capacities, unsplit, choice)),
        runner_up=order[1].cluster.name if len(order) > 1 else "",
        lead=lead,
        over_unsplit=_gap(choice, unsplit, aim) if choice is not unsplit else None,
        break_even_tokens=break_even(choice, unsplit) if choice is not unsplit and unsplit.is_stable else None,
        flips=_flips(question, costs, [*order[:2], unsplit], choice, on_run),
        work=work,
        capacities=capacities,
        trials=tuple(trials),
    )


def _flips(
    question: Question, costs: Calibration, rivals: Sequence[Trial], choice: Trial, on_run: Callable[[str], None]
) -> tuple[str, ...] | None:
    if not question.tries_changes:
        return None
    return tuple(flips(question, costs, rivals, choice, 2 * SIMULATOR_ERROR, on_run))


def _gap(better: Trial, worse: Trial, aim: Aim) -> Gap | None:
    """None where one of them does not keep up: how long a queue gets says how long the simulation was."""
    return gap(better, worse, aim) if better.is_stable and worse.is_stable else None


def _decides(lead: Gap) -> bool:
    return lead.low > 0 and lead.mean >= 2 * SIMULATOR_ERROR


def _simplest(trials: Sequence[Trial], best: Trial, aim: Aim) -> Trial:
    """The first that the best does not clearly beat: fleets are in the order of what there is to operate."""
    return next(one for one in trials if one is best or (one.is_stable and not _decides(gap(best, one, aim))))


def _headline(choice: Trial, order: Sequence[Trial], *, is_clear: bool) -> str:
    name = choice.cluster.name
    if not order[0].is_stable:
        return f"None of {len(order)} fleets keeps up with this traffic; {name} comes closest."
    if is_clear:
        return f"Take {name}."
    rivals = " and ".join(one.cluster.name for one in order[:2])
    return f"No clear winner: measure {rivals} on this traffic. Until then {name}, the simplest of those in front."


def break_even(choice: Trial, unsplit: Trial) -> tuple[float, float]:
    """Output lengths between which the unsplit fleet begins to end answers sooner: what it loses at the first token
    over what it wins with each later one. Infinite in runs in which it wins nothing.
    """
    found = []
    for split, whole in zip(choice.runs, unsplit.runs, strict=True):
        first_s = whole.all.ttft_s.mean - split.all.ttft_s.mean
        if split.all.tpot_s is None or whole.all.tpot_s is None:
            continue
        later_s = split.all.tpot_s.mean - whole.all.tpot_s.mean
        found.append(1.0 + max(first_s, 0.0) / later_s if later_s > 0 else float("inf"))
    return (min(found), max(found)) if found else (float("inf"), float("inf"))
