"""The advice as a page."""

from collections.abc import Iterator, Sequence
from math import isinf

from chiasm.advisor.advice import SIMULATOR_ERROR, Advice
from chiasm.advisor.evaluate import Gap, Trial, ranked
from chiasm.advisor.question import Question


def markdown_of(question: Question, advice: Advice) -> str:
    """All of it, the advice first."""
    return "\n".join(_lines(question, advice)) + "\n"


def _lines(question: Question, advice: Advice) -> Iterator[str]:
    yield f"# {advice.headline}"
    yield ""
    yield from (f"- {reason}" for reason in advice.reasons)
    yield from (f"- {line}" for line in comparisons(question, advice))
    yield ""
    yield from _table(advice)
    yield ""
    if advice.flips is not None:
        yield "What would change it:"
        yield ""
        yield from (f"- {line}" for line in flip_lines(advice.flips))


def flip_lines(flips: Sequence[str]) -> Sequence[str]:
    """What would change the advice, or that nothing tried would."""
    return flips or (
        "None of the changes tried: rate, pictures, length of answers, speed of tower and model, precision of weights.",
    )


def comparisons(question: Question, advice: Advice) -> Iterator[str]:
    """The choice against the fleet that splits nothing and the runner-up, in sentences."""
    what = {"ttft": "time to the first token", "e2el": "time to the last token", "goodput": "goodput for the cost"}
    aim = what[question.aim]
    if advice.over_unsplit is not None:
        yield f"{advice.choice} over the fleet that splits nothing: {_gap(advice.over_unsplit)} better in {aim}."
    if advice.lead is not None and advice.is_clear:
        yield f"The runner-up is {advice.runner_up}; the lead over it is {_gap(advice.lead)}."
    elif advice.lead is not None:
        yield (
            f"The best leads {advice.runner_up} by {_gap(advice.lead)}; less than "
            f"{2 * SIMULATOR_ERROR:.0%}, or within chance, decides nothing."
        )
        yield _to_measure(question, advice)
    if advice.break_even_tokens is not None:
        yield _break_even(*advice.break_even_tokens)


def _to_measure(question: Question, advice: Advice) -> str:
    """The cells that would decide: the best two on this traffic, class by class."""
    kinds = ", ".join(
        f"{one.name} ({one.num_images} pictures, {one.text_tokens} tokens of text, {one.output_tokens} of output)"
        for one in question.traffic.classes
    )
    best = ranked(advice.trials, question.aim)[0].cluster.name
    return (
        f"To measure with `chiasm bench grid`: {best} and {advice.runner_up} at {question.traffic.rate_per_s:.2f} "
        f"requests a second of {kinds}."
    )


def _break_even(low: float, high: float) -> str:
    if isinf(low):
        return "Unsplit never ends answers sooner, however long they are."
    if isinf(high):
        return f"Unsplit ends answers sooner from {low:.0f} output tokens on in some of the runs, and never in others."
    return f"Unsplit ends answers sooner from {low:.0f} to {high:.0f} output tokens on (the interval is over the runs)."


def _gap(found: Gap) -> str:
    return f"{found.mean:.1%} (95 %: {found.low:.1%} to {found.high:.1%})"


def _table(advice: Advice) -> Iterator[str]:
    yield "| fleet | bears /s | by | busiest | TTFT mean, p95 ms | TPOT ms | E2EL mean, p95 ms | good /s for the cost |"
    yield "|---|---:|---|---|---:|---:|---:|---:|"
    for trial in advice.trials:
        yield _row(trial, advice)


def _row(trial: Trial, advice: Advice) -> str:
    name = trial.cluster.name
    bears, run = advice.capacities[name], trial.runs[0]
    if not trial.is_stable:
        return f"| {name} | {bears.per_s:.2f} | {bears.binding} | does not keep up | | | | |"
    first, whole = run.all.ttft_s, run.all.e2el_s
    tpot = f"{1e3 * run.all.tpot_s.mean:.1f}" if run.all.tpot_s is not None else ""
    busiest = f"{run.binding} {run.utilisation.get(run.binding, 0.0):.0%}"
    return (
        f"| {name} | {bears.per_s:.2f} | {bears.binding} | {busiest} | {1e3 * first.mean:.0f}, {1e3 * first.p95:.0f} "
        f"| {tpot} | {1e3 * whole.mean:.0f}, {1e3 * whole.p95:.0f} | {trial.figure('goodput'):.2f} |"
    )
