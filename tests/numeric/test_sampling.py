"""Filters and penalties against Hugging Face's logits processors."""

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from chiasm.engines.embedded.sampling.draw import DrawParams, draw
from chiasm.engines.embedded.sampling.penalties import PenaltyHistory
from chiasm.protocol.generation import SamplingParams

VOCAB = 6000
CASES = [
    DrawParams(temperature, top_k, top_p, min_p)
    for temperature in (0.3, 1.0, 1.7)
    for top_k in (0, 1, 40, 3000)
    for top_p in (0.2, 0.9, 0.999, 1.0)
    for min_p in (0.0, 0.02, 0.5)
]


def hugging_face(logits: torch.Tensor, how: DrawParams) -> torch.Tensor:
    """Probabilities [rows, VOCAB] after the warpers, in the order `generate` applies them."""
    unused = torch.empty(len(logits), 0, dtype=torch.long)
    scores = TemperatureLogitsWarper(how.temperature)(unused, logits)
    if how.top_k:
        scores = TopKLogitsWarper(how.top_k)(unused, scores)
    if how.top_p < 1:
        scores = TopPLogitsWarper(how.top_p)(unused, scores)
    if how.min_p:
        scores = MinPLogitsWarper(how.min_p)(unused, scores)
    return scores.double().softmax(-1)


@pytest.mark.parametrize("spread", [1.0, 6.0])
@pytest.mark.parametrize("how", CASES, ids=str)
def test_draws_follow_hugging_faces_distribution(how, spread):
    """The drawn token is the one at which the cumulated probabilities pass the random number."""
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(3)) * spread
    cumulative = hugging_face(logits, how).cumsum(-1)
    uniforms = [(row + 0.37) / 8 for row in range(8)]
    drawn = draw(logits.clone(), [how] * 8, uniforms)
    upper = cumulative.gather(-1, drawn[:, None]).squeeze(-1)
    lower = upper - hugging_face(logits, how).gather(-1, drawn[:, None]).squeeze(-1)
    wanted = torch.tensor(uniforms, dtype=torch.float64)
    assert torch.all((lower - 1e-5 <= wanted) & (wanted <= upper + 1e-5))


def test_rows_with_different_parameters_follow_their_own():
    logits = torch.randn(len(CASES), VOCAB, generator=torch.Generator().manual_seed(4)) * 2
    drawn = draw(logits.clone(), CASES, [0.5] * len(CASES))
    for row, how in enumerate(CASES):
        kept = hugging_face(logits[row : row + 1], how)[0]
        assert kept[drawn[row]] > 0


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3, 5.0])
def test_repetition_penalty_is_hugging_faces(penalty):
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 4
    history = PenaltyHistory(SamplingParams(repetition_penalty=penalty), VOCAB)
    history.observe_prompt([1, 5, 5, 99])
    history.observe_output([7, 1, 4000])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[1, 5, 5, 99, 7, 1, 4000]]), logits[None])[0]
    history.apply(logits)
    assert torch.equal(logits, expected)
