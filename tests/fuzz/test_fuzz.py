"""A short run of every target with the same inputs each time; `tools/fuzz_media.py` goes on for longer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.corpus import mutated, seeds
from tests.fuzz.targets import TARGETS

NUM_INPUTS = {"header": 600, "decode": 200, "png": 300, "data_url": 1500, "url": 1500, "video": 40, "audio": 150}


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_pass(target):
    for seed in seeds(target):
        TARGETS[target](seed)


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_seeds_end_in_a_result_or_a_refusal(target):
    dice, corpus = random.Random(target), seeds(target)
    for _ in range(NUM_INPUTS[target]):
        TARGETS[target](mutated(dice.choice(corpus), dice))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(sorted(set(TARGETS) - {"video"})))
def test_any_bytes_end_in_a_result_or_a_refusal(data, target):
    TARGETS[target](data)


HOSTS = st.from_regex(r"[a-z0-9.\-\[\]:@%]{0,24}", fullmatch=True)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["https://", "http://", "https:", "//"]), HOSTS, st.sampled_from(["", ".example", ":80", "/", "#"])
)
def test_any_host_is_judged(scheme, host, rest):
    TARGETS["url"]((scheme + host + rest).encode())
