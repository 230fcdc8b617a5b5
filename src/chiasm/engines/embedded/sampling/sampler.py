"""Choose the next token of each sequence of a step.

Order per sequence: logit bias, minimum length, grammar, penalties, temperature, top-k, top-p, min-p. Log
probabilities are those of the unmodified logits.
"""

from collections.abc import Sequence

import msgspec
import torch

from chiasm.engines.embedded.sampling.draw import draw
from chiasm.engines.embedded.sampling.sequence import SequenceSampler
from chiasm.errors import ChiasmError, EngineStepError

__all__ = ["Outcome", "SampledToken", "SequenceSampler", "sample"]


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """A chosen token. `logprob` and `top` (id, log probability; most likely first) only when asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


Outcome = SampledToken | ChiasmError
"""What became of a row: a token, or the error that ends its sequence."""


def sample(logits: torch.Tensor, sequences: Sequence[SequenceSampler]) -> list[Outcome]:
    """Choose one token per row and record it with its sequence.

    A row that cannot be sampled (NaN or infinite logits, a grammar too complex to follow) gets the error that ends
    that sequence; the other rows are unaffected.

    Args:
        logits: [rows, vocab_size], any floating dtype; not modified.
        sequences: One per row.
    """
    assert logits.shape[0] == len(sequences), "one sequence per row"
    plain = [i for i, sequence in enumerate(sequences) if sequence.is_plain_greedy]
    if len(plain) == len(sequences):
        return _choose_largest(logits, sequences)
    outcomes: dict[int, Outcome] = {}
    if plain:
        outcomes.update(zip(plain, _choose_largest(logits[plain], [sequences[i] for i in plain]), strict=True))
    others = [i for i, sequence in enumerate(sequences) if not sequence.is_plain_greedy]
    private = logits[others].float() if plain else logits.to(torch.float32, copy=True)
    outcomes.update(zip(others, _choose(private, [sequences[i] for i in others]), strict=True))
    return [outcomes[i] for i in range(len(sequences))]


def _choose_largest(logits: torch.Tensor, sequences: Sequence[SequenceSampler]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for token_id, sequence in zip(_largest(logits), sequences, strict=True):
        if token_id < 0:
            outcomes.append(_not_finite())
            continue
        sequence.record(token_id)
        outcomes.append(SampledToken(token_id))
    return outcomes


def _largest(logits: torch.Tensor) -> list[int]:
    """The lowest id of the largest logit per row; -1 where that is not finite. One transfer from the device."""
    largest = logits.max(dim=-1)
    token_ids: list[int] = largest.indices.masked_fill(~largest.values.isfinite(), -1).tolist()
    return token_ids


def _choose(logits: torch.Tensor, sequences: Sequence[SequenceSampler]) -> list[Outcome]:
    """`logits` is a private float32 copy that is changed."""
    errors = [None if is_finite else _not_finite() for is_finite in logits.amax(-1).isfinite().tolist()]
    raw_logprobs = _RawLogprobs(logits, sequences)
    for i, sequence in enumerate(sequences):
        if errors[i] is None and sequence.is_processed:
            errors[i] = _process(sequence, logits[i])
    chosen = _largest(logits)
    drawn = [i for i, s in enumerate(sequences) if not s.is_greedy and errors[i] is None and chosen[i] >= 0]
    if drawn:
        rows = [sequences[i] for i in drawn]
        scores = logits if len(drawn) == len(sequences) else logits[drawn]
        token_ids = draw(scores, [s.draw_params for s in rows], [s.next_uniform() for s in rows])
        for i, token_id in zip(drawn, token_ids.tolist(), strict=True):
            chosen[i] = token_id
    sampled = raw_logprobs.report(chosen)
    return [errors[i] or _record(sequence, sampled[i]) for i, sequence in enumerate(sequences)]


def _process(sequence: SequenceSampler, row: torch.Tensor) -> ChiasmError | None:
    try:
        sequence.process(row)
    except ChiasmError as error:
        return error
    return None


def _record(sequence: SequenceSampler, sampled: SampledToken) -> Outcome:
    if sampled.token_id < 0:
        return EngineStepError("No token is left to choose from after bias, minimum length and grammar")
    try:
        sequence.record(sampled.token_id)
    except ChiasmError as error:
        return error
    return sampled


def _not_finite() -> ChiasmError:
    return EngineStepError("The model's logits are not finite", hint="Try a wider dtype")


class _RawLogprobs:
    """Log probabilities of the rows that ask for them, taken before the logits are changed."""

    def __init__(self, logits: torch.Tensor, sequences: Sequence[SequenceSampler]) -> None:
        asked = [(i, s.num_top_logprobs) for i, s in enumerate(sequences) if s.num_top_logprobs is not None]
        self._num_top = dict(asked)
        self._logprobs = logits[list(self._num_top)].log_softmax(-1) if asked else None

    def report(self, chosen: list[int]) -> list[SampledToken]:
        """Token ids of all rows, with log probabilities where asked for."""
        sampled = [SampledToken(token_id) for token_id in chosen]
        if self._logprobs is None:
            return sampled
        token_ids = torch.tensor([[max(chosen[i], 0)] for i in self._num_top], device=self._logprobs.device)
        own = self._logprobs.gather(-1, token_ids).squeeze(-1).tolist()
        best = self._logprobs.topk(min(max(self._num_top.values()), self._logprobs.shape[-1]), dim=-1)
        ids, values = best.indices.tolist(), best.values.tolist()
        for row, (i, num_top) in enumerate(self._num_top.items()):
            top = tuple(zip(ids[row][:num_top], values[row][:num_top], strict=True))
            sampled[i] = SampledToken(chosen[i], own[row], top)
        return sampled
