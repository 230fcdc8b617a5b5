"""When a prompt is computed while pictures of it are still being encoded elsewhere, and what that is predicted to save.

Encoders are then asked in parts, and each part's embeddings follow the prompt when they are there. That takes further
calls; it is done where computing the prompt up to the last part takes longer than those calls do.
"""

from collections.abc import Sequence

from chiasm.routing.costs.model import StageCosts
from chiasm.routing.plan import EncodeGroup
from chiasm.routing.view import Job

MAX_PARTS = 4


def parts_of(group: EncodeGroup) -> list[EncodeGroup]:
    """Calls for some pictures each, in the prompt's order, instead of one for all."""
    size = -(-len(group.identities) // MAX_PARTS)
    starts = range(0, len(group.identities), size)
    return [EncodeGroup(group.worker, group.identities[start : start + size]) for start in starts]


def saved_s(job: Job, costs: StageCosts, prefill: str, groups: Sequence[EncodeGroup]) -> float:
    """Predicted seconds by which the first token comes earlier; nothing where it would not pay, or is not done."""
    if not groups or prefill not in job.may_overlap:
        return 0.0
    parts = [parts_of(group) for group in groups]
    num_tokens = min(tokens_before(each[-1].identities[0], job, costs, prefill) for each in parts)
    num_calls = 2 * sum(map(len, parts)) - len(groups)
    return max(0.0, costs.prefill_s(prefill, num_tokens) - costs.prefill_s(prefill, 0.0) - num_calls * costs.hop_s)


def tokens_before(identity: str, job: Job, costs: StageCosts, worker: str) -> float:
    """Tokens in front of a picture's first place that a worker has to compute, estimated."""
    start = job.starts.get(identity)
    if start is None:
        return 0.0
    pixels = {item.identity: item.num_pixels for item in job.items}
    before = start.items[len(job.known_items(worker)) : -1]
    num_chars = max(0, start.num_chars - job.known_chars(worker))
    num_visual = sum(costs.tokens_of_pixels.at(pixels[one]) for one in before)
    return costs.tokens_of_chars.per_unit_s * num_chars + num_visual
