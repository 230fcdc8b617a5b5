"""Sentences with the numbers that decide, in the order of the decision."""

from collections.abc import Iterator, Mapping, Sequence

from chiasm.advisor.candidates import LEAST_KV_SHARE
from chiasm.advisor.capacity import Capacity, batch_of
from chiasm.advisor.evaluate import Trial
from chiasm.advisor.question import Question
from chiasm.advisor.stages import StageTimes
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.traffic import RequestClass

_MUCH = 0.7
"""Share of what a fleet bears, from which on waiting is most of a latency."""
_WORSE = 0.03
_FAR = 1.25
"""Times the largest size that was measured."""
_UNITS = {"prefill": "tokens", "media": "pixels", "encode": "visual tokens"}


def reasons(
    question: Question,
    costs: Calibration,
    work: StageTimes,
    capacities: Mapping[str, Capacity],
    unsplit: Trial,
    choice: Trial,
) -> Iterator[str]:
    """What takes the time, what fits, what stages bear, and what requests would feel."""
    yield from _diagnosis(work)
    yield from _range(question, costs)
    yield from _fit(question, costs, unsplit)
    yield from _load(question, capacities[unsplit.cluster.name], unsplit)
    if not costs.knows_encoders_beside and question.tier.kv_share >= LEAST_KV_SHARE:
        yield "Encoders beside an engine on its own device were not looked at: how they slow it down is not measured."
    if choice is not unsplit and unsplit.is_stable:
        yield from _feel(choice, unsplit)


def _diagnosis(work: StageTimes) -> Iterator[str]:
    total = work.first_token + work.decode
    yield (
        f"A request's work alone is {_ms(work.media)} of media, {_ms(work.encode)} in the vision tower, "
        f"{_ms(work.prefill)} of prompt and {_ms(work.decode)} of decoding: "
        f"{(work.media + work.encode) / total:.0%} could be split off."
    )
    if not work.media + work.encode:
        yield "There is nothing to encode: splitting the encoder off cannot help."
    elif work.media > 2 * work.encode:
        yield (
            "Media work, not the vision tower, is what costs before the prompt: more threads for it "
            "(media.decode_threads), or a cache, come before any split."
        )
    if work.decode > _MUCH * total:
        yield (
            f"Decoding is {work.decode / total:.0%} of the work: a split changes when the first token comes, "
            "and little of when the last one does."
        )


def _fit(question: Question, costs: Calibration, unsplit: Trial) -> Iterator[str]:
    batch = batch_of(question.traffic.classes, costs, costs.kv_tokens)
    num_open = unsplit.runs[0].mean_open / question.num_devices
    bound = "room for contexts" if costs.kv_tokens and batch < costs.max_running else "slots"
    yield f"An engine runs {batch} generations at once ({bound}); unsplit, {num_open:.1f} are under way on each."
    share = question.tier.kv_share
    if share < LEAST_KV_SHARE:
        yield (
            f"An encoder beside an engine leaves {share:.0%} of its room for contexts, less than {LEAST_KV_SHARE:.0%}: "
            "encoders on the engines' own devices do not fit."
        )


def _range(question: Question, costs: Calibration) -> Iterator[str]:
    """Costs beyond the sizes that were measured are the curve's, continued."""
    for what, stage, size in _sizes(question.traffic.classes):
        measured = costs.evidence.get(stage)
        most = max((units for units, _ in measured.residuals), default=0.0) if measured is not None else 0.0
        if most and size > _FAR * most:
            yield (
                f"{what} of {size:,} {_UNITS[stage]} are beyond what was measured (up to {most:,.0f}): what they cost "
                "is the measured curve, continued."
            )


def _sizes(classes: Sequence[RequestClass]) -> Iterator[tuple[str, str, int]]:
    yield "Prompts", "prefill", max(one.text_tokens + one.num_images * one.visual_tokens for one in classes)
    with_pictures = [one for one in classes if one.num_images]
    if with_pictures:
        yield "Pictures", "media", max(one.num_pixels for one in with_pictures)
        yield "Pictures", "encode", max(one.visual_tokens for one in with_pictures)


def _load(question: Question, bears: Capacity, unsplit: Trial) -> Iterator[str]:
    rate = question.traffic.rate_per_s
    share = rate / bears.per_s if bears.per_s else float("inf")
    yield (
        f"Unsplit, the stages bear {bears.per_s:.2f} requests a second, by {bears.binding}; "
        f"{rate:.2f} come, {share:.0%} of it."
    )
    if not unsplit.is_stable:
        yield "Unsplit, the queue grows for as long as this traffic lasts."
    elif share < 1 - _MUCH:
        yield "There is little load: what a request feels is its own work, and waiting for others' hardly counts."


def _feel(choice: Trial, unsplit: Trial) -> Iterator[str]:
    first, whole = (_change(choice, unsplit, aim) for aim in ("ttft", "e2el"))
    yield f"Against unsplit, the first token comes {_than(first)}, the last one {_than(whole)} (means)."
    if whole > _WORSE:
        yield "Answers end later than unsplit: take it only if the first token is what counts."


def _change(choice: Trial, unsplit: Trial, aim: str) -> float:
    mine, theirs = (
        sum((run.all.ttft_s if aim == "ttft" else run.all.e2el_s).mean for run in one.runs) for one in (choice, unsplit)
    )
    return mine / theirs - 1.0


def _than(change: float) -> str:
    return f"{abs(change):.0%} {'later' if change > 0 else 'sooner'}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
