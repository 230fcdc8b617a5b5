import torch

from chiasm.engines.embedded.sampling.penalties import PenaltyHistory
from chiasm.protocol.generation import SamplingParams


def applied(row: list[float], prompt=(), output=(), **params) -> list[float]:
    history = PenaltyHistory(SamplingParams(**params), len(row))
    history.observe_prompt(prompt)
    history.observe_output(output)
    tensor = torch.tensor(row)
    history.apply(tensor)
    return tensor.tolist()


def test_repetition_shrinks_towards_unlikely_for_prompt_and_output():
    assert applied([2.0, -2.0, 2.0, -2.0], prompt=[0, 1], output=[3], repetition_penalty=2.0) == [1.0, -4.0, 2.0, -4.0]


def test_frequency_counts_output_only():
    assert applied([0.0, 0.0, 0.0], prompt=[0], output=[1, 1, 2], frequency_penalty=0.5) == [0.0, -1.0, -0.5]


def test_presence_is_flat_and_looks_at_output_only():
    assert applied([0.0, 0.0, 0.0], prompt=[0], output=[1, 1, 2], presence_penalty=0.5) == [0.0, -0.5, -0.5]


def test_negative_penalties_favour_repetition():
    assert applied([0.0, 0.0], output=[1], frequency_penalty=-1.0, presence_penalty=-0.5) == [0.0, 1.5]


def test_history_grows_between_steps():
    history = PenaltyHistory(SamplingParams(frequency_penalty=1.0), 3)
    for step in range(3):
        row = torch.zeros(3)
        history.apply(row)
        assert row.tolist() == [0.0, -float(step), 0.0]
        history.observe_output([1])


def test_masked_tokens_stay_masked():
    row = applied([-torch.inf, 1.0], prompt=[0], output=[0], repetition_penalty=1.5, presence_penalty=-2.0)
    assert row == [-torch.inf, 1.0]
