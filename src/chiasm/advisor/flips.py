"""What would change the advice."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from chiasm.advisor.evaluate import Trial, evaluate, gap, ranked
from chiasm.advisor.question import Question
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.traffic import RequestClass

_NUM_SEEDS = 2
_MAX_REQUESTS = 600


def flips(
    question: Question,
    costs: Calibration,
    rivals: Sequence[Trial],
    choice: Trial,
    margin: float,
    on_run: Callable[[str], None],
) -> Iterator[str]:
    """Changes under which one of the rivals keeps up and beats the choice by `margin` or more, in words."""
    fleets = list({one.cluster.name: one.cluster for one in (choice, *rivals)}.values())
    for what, changed, changed_costs in changes(question, costs):
        on_run(what)
        trials = evaluate(fleets, changed.traffic, changed_costs, num_seeds=_NUM_SEEDS, objective=question.objective)
        mine, best = trials[0], ranked(trials, question.aim)[0]
        if best is mine or not best.is_stable:
            continue
        if not mine.is_stable or gap(best, mine, question.aim).mean >= margin:
            yield f"{what}: {best.cluster.name}"


def changes(question: Question, costs: Calibration) -> Iterator[tuple[str, Question, Calibration]]:
    """What might be otherwise, one after the other: in words, as a question, and as costs."""
    traffic = msgspec.structs.replace(question.traffic, num_requests=min(question.traffic.num_requests, _MAX_REQUESTS))

    def asked(**fields: object) -> Question:
        return msgspec.structs.replace(question, traffic=msgspec.structs.replace(traffic, **fields))

    yield "Half the rate", asked(rate_per_s=traffic.rate_per_s / 2), costs
    yield "Half as much again", asked(rate_per_s=traffic.rate_per_s * 1.5), costs
    if any(one.num_images for one in traffic.classes):
        yield "Twice the pictures", asked(classes=_each(traffic.classes, "num_images", 2)), costs
        yield "A vision tower twice as fast", asked(), _quicker_tower(costs)
    yield "Answers four times as long", asked(classes=_each(traffic.classes, "output_tokens", 4)), costs
    yield "A language model twice as fast", asked(), _model_scaled(costs, 0.5)
    yield "A language model twice as slow", asked(), _model_scaled(costs, 2.0)
    yield "Weights of half the precision", asked(), _weights_halved(costs)


def _quicker_tower(costs: Calibration) -> Calibration:
    return msgspec.structs.replace(
        costs, encode=_scaled(costs.encode, 0.5), encode_quadratic_s=costs.encode_quadratic_s / 2
    )


def _model_scaled(costs: Calibration, factor: float) -> Calibration:
    """A step's CPU seconds on a shared host, too, although some of them are its tokens' way to the client."""
    sharing = costs.sharing
    if sharing is not None:
        sharing = sharing.with_step_cpu(lambda cost: _scaled(cost, factor))
    return msgspec.structs.replace(
        costs,
        prefill=_scaled(costs.prefill, factor),
        prefill_quadratic_s=costs.prefill_quadratic_s * factor,
        step=_scaled(costs.step, factor),
        context_s=costs.context_s * factor,
        sharing=sharing,
    )


def _weights_halved(costs: Calibration) -> Calibration:
    """What each step and each prompt costs whatever its size is mostly reading the weights: half as much to read."""
    sharing = costs.sharing
    if sharing is not None:
        sharing = sharing.with_step_cpu(_fixed_halved)
    return msgspec.structs.replace(
        costs, prefill=_fixed_halved(costs.prefill), step=_fixed_halved(costs.step), sharing=sharing
    )


def _fixed_halved(cost: Cost) -> Cost:
    return Cost(fixed_s=cost.fixed_s / 2, per_unit_s=cost.per_unit_s)


def _each(classes: Sequence[RequestClass], field: str, factor: int) -> tuple[RequestClass, ...]:
    return tuple(msgspec.structs.replace(one, **{field: factor * getattr(one, field)}) for one in classes)


def _scaled(cost: Cost, factor: float) -> Cost:
    return Cost(fixed_s=cost.fixed_s * factor, per_unit_s=cost.per_unit_s * factor)
