import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.engines.embedded.sampling.draw import DrawParams, draw, uniform

steady = settings(deadline=None)  # the cores are shared


def params(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> DrawParams:
    return DrawParams(temperature, top_k, top_p, min_p)


def reachable(logits: list[float], how: DrawParams, steps: int = 4096) -> set[int]:
    """Ids drawn by evenly spaced random numbers."""
    rows = torch.tensor(logits).repeat(steps, 1)
    return set(draw(rows, [how] * steps, [step / steps for step in range(steps)]).tolist())


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) if p else -math.inf for p in probabilities]


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (params(), {0, 1, 2, 3}),
        (params(top_k=1), {0}),
        (params(top_k=3), {0, 1, 2}),
        (params(top_k=99), {0, 1, 2, 3}),
        (params(top_p=0.4), {0}),
        (params(top_p=0.6), {0, 1}),
        (params(top_p=0.85), {0, 1, 2}),
        (params(min_p=0.5), {0, 1}),
        (params(min_p=1.0), {0}),
        (params(top_k=2, top_p=0.7), {0, 1}),  # the share is of what top-k leaves
        (params(top_k=3, min_p=0.45), {0, 1}),
    ],
)
def test_filters_keep_what_they_promise(how, kept):
    assert reachable(logs(0.5, 0.3, 0.15, 0.05), how) == kept


def test_ties_at_the_edge_are_all_kept():
    assert reachable(logs(0.4, 0.2, 0.2, 0.2), params(top_k=2)) == {0, 1, 2, 3}
    assert reachable(logs(0.4, 0.2, 0.2, 0.2), params(top_p=0.5)) == {0, 1, 2, 3}


def test_impossible_tokens_are_never_drawn():
    assert reachable(logs(0.0, 0.5, 0.0, 0.5, 0.0), params()) == {1, 3}
    edges = torch.tensor([logs(0.0, 1.0, 0.0)] * 2)
    assert draw(edges, [params()] * 2, [0.0, 1 - 2.0**-52]).tolist() == [1, 1]


def test_share_of_random_numbers_is_the_probability():
    rows = torch.tensor(logs(0.5, 0.3, 0.2)).repeat(1000, 1)
    drawn = draw(rows, [params()] * 1000, [(step + 0.5) / 1000 for step in range(1000)])
    assert torch.bincount(drawn).tolist() == [500, 300, 200]


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.5, 2.0, 100.0])
def test_temperature_scales_log_odds(temperature):
    logits = torch.tensor([2.0, 1.0, 0.0])
    rows = logits.repeat(1000, 1)
    drawn = draw(rows, [params(temperature)] * 1000, [(step + 0.5) / 1000 for step in range(1000)])
    shares = torch.bincount(drawn, minlength=3) / 1000
    assert torch.allclose(shares, (logits / temperature).softmax(-1), atol=2e-3)


def test_flat_distribution_needs_more_candidates_than_the_first_guess():
    logits = torch.zeros(1, 5000)
    logits += torch.linspace(0, 1e-3, 5000)
    (token_id,) = draw(logits, [params(top_p=0.9)], [0.0]).tolist()
    assert token_id == pytest.approx(500, abs=2)  # the lowest tenth is gone


PARAMS = st.builds(
    params,
    st.floats(0.01, 5),
    st.integers(0, 40),
    st.one_of(st.just(1.0), st.floats(0.05, 1)),
    st.one_of(st.just(0.0), st.floats(0, 0.9)),
)


@steady
@given(st.lists(PARAMS, min_size=2, max_size=6), st.integers(0, 2**32 - 1))
def test_a_row_draws_the_same_in_any_company(hows, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(hows), 300, generator=generator) * 3
    uniforms = torch.rand(len(hows), generator=generator, dtype=torch.float64).tolist()
    together = draw(logits.clone(), hows, uniforms).tolist()
    alone = [draw(logits[i : i + 1].clone(), [how], [uniforms[i]]).item() for i, how in enumerate(hows)]
    assert together == alone


def test_uniform_depends_on_seed_choice_and_step():
    drawn = {uniform(seed, choice, step) for seed in (-1, 0, 1, 2**70) for choice in (0, 1) for step in (0, 1)}
    assert len(drawn) == 16
    assert uniform(7, 1, 3) == uniform(7, 1, 3)


def test_uniform_is_uniform():
    counts = torch.histc(torch.tensor([uniform(1, 0, step) for step in range(20000)]), 20, 0, 1)
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_square < 43.8  # 99.9 % of 19 degrees of freedom


def test_every_token_of_a_large_vocabulary_can_be_drawn_in_its_place():
    weights = torch.zeros(1300)
    weights[[0, 511, 512, 1023, 1024, 1299]] = 1.0
    drawn = draw(weights.log().repeat(6, 1), [params()] * 6, [(at + 0.5) / 6 for at in range(6)])
    assert drawn.tolist() == [0, 511, 512, 1023, 1024, 1299]


@steady
@given(st.integers(0, 2**32 - 1), st.integers(1, 2000))
def test_a_drawn_token_is_always_possible(seed, vocab_size):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(32, vocab_size, generator=generator) * 30
    logits[torch.rand(32, vocab_size, generator=generator) < 0.5] = -torch.inf
    logits[:, seed % vocab_size] = 0.0
    uniforms = [0.0, *torch.rand(30, generator=generator, dtype=torch.float64).tolist(), 1 - 2.0**-52]
    drawn = draw(logits.clone(), [params()] * 32, uniforms)
    assert torch.all(logits.gather(-1, drawn[:, None]).isfinite())
