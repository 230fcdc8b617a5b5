import math

import pytest
import torch

from chiasm.engines.embedded.sampling.sampler import SampledToken, SequenceSampler, sample
from chiasm.errors import EngineStepError, InvalidRequestError
from chiasm.protocol.generation import SamplingParams

VOCAB = 50
EOS = frozenset({2, 0})


def sequence(choice: int = 0, **params) -> SequenceSampler:
    params.setdefault("temperature", 0.0)
    return SequenceSampler(SamplingParams(**params), choice=choice, vocab_size=VOCAB, eos_token_ids=EOS, grammar=None)


def logits_of(*rows: dict[int, float]) -> torch.Tensor:
    logits = torch.zeros(len(rows), VOCAB)
    for row, values in zip(logits, rows, strict=True):
        for token_id, value in values.items():
            row[token_id] = value
    return logits


def chosen(logits: torch.Tensor, *sequences: SequenceSampler) -> list[int]:
    outcomes = sample(logits, sequences)
    assert all(isinstance(outcome, SampledToken) for outcome in outcomes)
    return [outcome.token_id for outcome in outcomes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_largest_and_the_lowest_id_on_ties(dtype):
    logits = logits_of({7: 1.0, 30: 1.0}, {49: 3.0}, {}).to(dtype)
    assert chosen(logits, sequence(), sequence(), sequence()) == [7, 49, 0]
    unplain = [sequence(logit_bias={5: 0.0}) for _ in range(3)]
    assert chosen(logits, *unplain) == [7, 49, 0]


def test_temperature_close_to_zero_is_greedy():
    assert sequence(temperature=1e-9).is_plain_greedy
    assert chosen(logits_of({9: 1e-3}), sequence(temperature=1e-300)) == [9]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"logit_bias": {1: 1.0}},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"num_top_logprobs": 0},
        {"min_tokens": 1},
    ],
)
def test_anything_but_a_maximum_is_not_plain(params):
    assert not sequence(**params).is_plain_greedy


def test_filters_do_not_matter_to_a_greedy_sequence():
    assert sequence(top_k=5, top_p=0.5, min_p=0.1, seed=3).is_plain_greedy


def test_input_is_not_modified():
    logits = logits_of({3: 1.0}, {4: 1.0})
    before = logits.clone()
    sample(logits, [sequence(), sequence(logit_bias={3: 5.0}, temperature=1.0, frequency_penalty=1.0)])
    assert torch.equal(logits, before)


def test_logit_bias_is_added():
    row = {3: 1.0, 4: 0.5}
    assert chosen(logits_of(row), sequence(logit_bias={4: 1.0})) == [4]
    assert chosen(logits_of(row), sequence(logit_bias={3: -100.0})) == [4]


@pytest.mark.parametrize("token_id", [-1, VOCAB, 10**9])
def test_logit_bias_outside_the_vocabulary_is_refused(token_id):
    with pytest.raises(InvalidRequestError) as caught:
        sequence(logit_bias={token_id: 1.0})
    assert caught.value.param == f"/logit_bias/{token_id}"


def test_min_tokens_holds_off_every_ending_token():
    row = {2: 9.0, 0: 8.0, 11: 7.0, 5: 1.0}
    held = sequence(min_tokens=2, stop_token_ids=(11, VOCAB + 5))
    assert [chosen(logits_of(row), held)[0] for _ in range(3)] == [5, 5, 2]
    assert held.is_plain_greedy


def test_min_tokens_lets_ignored_end_of_text_through():
    assert chosen(logits_of({2: 9.0}), sequence(min_tokens=5, ignore_eos=True)) == [2]


def test_penalties_follow_the_sequence():
    penalised = sequence(presence_penalty=2.0)
    row = {4: 3.0, 5: 2.0, 6: 1.5}
    assert [chosen(logits_of(row), penalised)[0] for _ in range(4)] == [4, 5, 6, 4]


def test_prompt_counts_for_the_repetition_penalty_alone():
    row = {4: 3.0, 5: 2.0}
    for params, token_id in (({"repetition_penalty": 2.0}, 5), ({"frequency_penalty": 2.0}, 4)):
        penalised = sequence(**params)
        penalised.observe_prompt([4])
        assert chosen(logits_of(row), penalised) == [token_id]


def test_logprobs_are_those_of_the_unmodified_logits():
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(5))
    raw = logits.log_softmax(-1)[0]
    biased = sequence(logit_bias={17: 100.0}, num_top_logprobs=3, presence_penalty=1.0, temperature=0.7)
    (outcome,) = sample(logits, [biased])
    assert outcome.token_id == 17
    assert outcome.logprob == pytest.approx(raw[17].item(), abs=1e-6)
    best = raw.topk(3)
    assert [token_id for token_id, _ in outcome.top] == best.indices.tolist()
    assert [value for _, value in outcome.top] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_each_sequence_gets_the_number_of_logprobs_it_asked_for():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(6))
    outcomes = sample(logits, [sequence(num_top_logprobs=n) if n is not None else sequence() for n in (0, None, 20, 1)])
    assert [len(outcome.top) for outcome in outcomes] == [0, 0, 20, 1]
    assert [outcome.logprob is None for outcome in outcomes] == [False, True, False, False]


def draws(seed: int | None, choice: int = 0, mates: int = 0, steps: int = 30) -> list[int]:
    generator = torch.Generator().manual_seed(99)
    mine = sequence(choice, temperature=1.0, seed=seed, top_p=0.95)
    others = [sequence(temperature=0.5 * (i % 2), seed=i, top_k=i) for i in range(mates)]
    drawn = []
    for _ in range(steps):
        row = torch.randn(1, VOCAB, generator=generator)
        rest = torch.randn(mates, VOCAB, generator=torch.Generator().manual_seed(1))
        drawn.append(
            chosen(
                torch.cat([rest[: mates // 2], row, rest[mates // 2 :]]),
                *others[: mates // 2],
                mine,
                *others[mates // 2 :],
            )[mates // 2]
        )
    return drawn


def test_seeded_sequence_is_reproducible_in_any_company():
    assert draws(7) == draws(7, mates=1) == draws(7, mates=6)


def test_seeds_and_choices_differ():
    assert len({tuple(draws(7)), tuple(draws(8)), tuple(draws(7, choice=1)), tuple(draws(0))}) == 4


def test_without_a_seed_every_sequence_differs():
    assert draws(None) != draws(None)


def test_a_sequence_continues_where_another_engine_left_it():
    params = {"temperature": 1.0, "seed": 3, "frequency_penalty": 1.5, "min_tokens": 4}
    rows = torch.randn(12, 1, VOCAB, generator=torch.Generator().manual_seed(2))
    whole = sequence(**params)
    expected = [chosen(row, whole)[0] for row in rows]
    resumed = sequence(**params)
    resumed.observe_output(expected[:5])
    assert [chosen(row, resumed)[0] for row in rows[5:]] == expected[5:]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"num_top_logprobs": 2}])
def test_broken_logits_end_their_own_sequence_only(value, how):
    logits = logits_of({5: 1.0}, {7: value}, {9: 50.0}, {11: 50.0})
    outcomes = sample(logits, [sequence(), sequence(**how), sequence(temperature=1.0), sequence(num_top_logprobs=0)])
    assert isinstance(outcomes[1], EngineStepError)
    assert [outcomes[i].token_id for i in (0, 2, 3)] == [5, 9, 11]


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}])
def test_a_row_without_any_possible_token_is_an_error(how):
    outcomes = sample(torch.full((1, VOCAB), -torch.inf), [sequence(**how)])
    assert isinstance(outcomes[0], EngineStepError)


def test_masking_everything_is_an_error():
    bias = dict.fromkeys(range(VOCAB), -math.inf)
    (outcome,) = sample(torch.zeros(1, VOCAB), [sequence(logit_bias=bias, temperature=1.0)])
    assert isinstance(outcome, EngineStepError)


def test_mixed_batch_keeps_the_order_of_rows():
    logits = logits_of({10: 99.0}, {11: 99.0}, {12: 99.0}, {13: 99.0})
    sequences = [sequence(temperature=1.0), sequence(), sequence(num_top_logprobs=1), sequence()]
    assert chosen(logits, *sequences) == [10, 11, 12, 13]
