import numpy as np
import pytest

from chiasm.simulator.traffic import RequestClass, Traffic, requests_of


def gaps(**fields):
    times = [one.at_s for one in requests_of(Traffic(num_requests=4000, rate_per_s=10.0, **fields))]
    return np.diff(times)


@pytest.mark.parametrize(
    ("fields", "variation"),
    [({"arrivals": "constant"}, 0.0), ({"arrivals": "poisson"}, 1.0), ({"arrivals": "gamma", "shape": 0.25}, 2.0)],
)
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(fields, variation):
    found = gaps(**fields)
    assert found.mean() == pytest.approx(0.1, rel=0.08)
    assert found.std() / found.mean() == pytest.approx(variation, rel=0.1, abs=1e-9)


def test_classes_come_in_their_shares_and_do_not_change_each_other():
    a, b = RequestClass(name="a", share=3.0, output_spread="exponential"), RequestClass(name="b")
    found = list(requests_of(Traffic(classes=(a, b), num_requests=4000)))
    assert sum(one.class_name == "a" for one in found) == pytest.approx(3000, rel=0.05)
    alone = [one.output_tokens for one in requests_of(Traffic(classes=(a,), num_requests=100))]
    assert [one.output_tokens for one in found if one.class_name == "a"][:100] == alone


def test_sizes_vary_with_the_mean_asked_for_and_tokens_go_with_pixels():
    kind = RequestClass(num_images=1, num_pixels=10_000, pixel_spread="exponential", visual_tokens=100)
    pictures = [one.pictures[0] for one in requests_of(Traffic(classes=(kind,), num_requests=4000))]
    assert np.mean([one.num_pixels for one in pictures]) == pytest.approx(10_000, rel=0.06)
    assert all(abs(one.num_tokens - one.num_pixels / 100) <= 1 for one in pictures)


def test_pictures_are_new_unless_repeats_are_asked_for():
    def identities(share):
        kind = RequestClass(num_images=2, repeat_share=share)
        found = requests_of(Traffic(classes=(kind,), num_requests=500))
        return [tuple(picture.identity for picture in one.pictures) for one in found]

    assert len(set(identities(0.0))) == 500
    assert len(set(identities(0.5))) == pytest.approx(250, rel=0.15)


@pytest.mark.parametrize("among", [1, 10])
def test_repeats_are_of_the_last_so_many_that_were_new(among):
    kind = RequestClass(num_images=1, repeat_share=0.5, repeat_among=among)
    recent, oldest = [], 0
    for one in requests_of(Traffic(classes=(kind,), num_requests=500)):
        (picture,) = one.pictures
        if picture.identity not in recent:
            recent.append(picture.identity)
        oldest = max(oldest, len(recent) - recent.index(picture.identity))
    assert oldest == among


def test_prompts_count_text_and_pictures():
    kind = RequestClass(num_images=3, visual_tokens=100, text_tokens=7)
    (request,) = requests_of(Traffic(classes=(kind,), num_requests=1))
    assert request.prompt_tokens == 307
