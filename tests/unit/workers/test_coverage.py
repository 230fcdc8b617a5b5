import numpy as np
import pytest
import torch

from chiasm.cache.block_hash import BLOCK_TOKENS, MediaSpan, block_hashes
from chiasm.cache.block_pool import BlockPool
from chiasm.engines.embedded.decoder.rotary import Rotary
from chiasm.engines.embedded.families.base import PlacedImage
from chiasm.engines.embedded.handover import prompt_hash
from chiasm.engines.embedded.sequence import PlannedPrompt, PromptTensors
from chiasm.media.prepare.base import ImagePlan
from chiasm.workers.coverage import covered_by_kv, pin_prefix

PLAN = ImagePlan(width=8, height=8, num_embeddings=6, num_prompt_tokens=8, resized=(8, 8))


def prompt(num_tokens: int, *places: tuple[int, str], first_token: int = 0, namespace: str = "m") -> PlannedPrompt:
    """A prompt with pictures of 8 tokens, of which the middle six are embedding rows."""
    token_ids = np.arange(first_token, first_token + num_tokens, dtype=np.int64)
    media = tuple(MediaSpan(key, offset, 8) for offset, key in places)
    is_row = np.zeros(num_tokens, bool)
    for offset, _ in places:
        is_row[offset + 1 : offset + 7] = True
    return PlannedPrompt(
        token_ids=token_ids,
        rotary=Rotary(torch.zeros(num_tokens, 4), torch.zeros(num_tokens, 4)),
        next_position=num_tokens,
        images=tuple(PlacedImage(PLAN, offset, 8) for offset, _ in places),
        media=media,
        is_embedding_row=is_row,
        model_revision="m",
        cache_salt="",
        namespace=namespace,
        hashes=tuple(block_hashes(token_ids, media, namespace)),
    )


def filled(prompt_: PlannedPrompt, num_blocks: int) -> BlockPool:
    pool = BlockPool(16)
    pool.insert(prompt_.hashes[:num_blocks])
    return pool


@pytest.mark.parametrize(
    ("num_blocks", "num_tokens", "first_image"), [(0, 0, 0), (1, 16, 1), (2, 32, 1), (3, 48, 2), (4, 64, 2)]
)
def test_a_picture_is_covered_when_its_last_token_is(num_blocks, num_tokens, first_image):
    asked = prompt(100, (4, "a"), (30, "b"), (60, "c"))
    pool = filled(asked, num_blocks)
    coverage = pin_prefix(pool, asked)
    assert (coverage.num_tokens, coverage.first_image, pool.num_pinned) == (num_tokens, first_image, num_blocks)
    assert (coverage.give_back is None) is (num_blocks == 0)
    if coverage.give_back is not None:
        coverage.give_back()
    assert pool.num_pinned == 0
    pool.check_invariants()


def test_at_least_one_token_stays_to_be_computed():
    asked = prompt(3 * BLOCK_TOKENS, (40, "a"))
    coverage = pin_prefix(filled(asked, 3), asked)
    assert (coverage.num_tokens, coverage.first_image) == (2 * BLOCK_TOKENS, 0)


def test_a_prompt_without_pictures_pins_nothing():
    asked = prompt(100)
    pool = filled(asked, 6)
    assert (pin_prefix(pool, asked).num_tokens, pool.num_pinned) == (0, 0)


@pytest.mark.parametrize(("num_tokens", "first_image"), [(100, 2), (39, 2), (38, 1)])
def test_keys_and_values_cover_all_but_the_last_token(num_tokens, first_image):
    coverage = covered_by_kv(prompt(num_tokens, (4, "a"), (30, "b")), lambda: None)
    assert (coverage.num_tokens, coverage.first_image) == (num_tokens - 1, first_image)


def test_two_prompts_share_keys_and_values_only_when_all_that_shapes_them_is_the_same():
    base = prompt(40, (4, "a"))
    assert prompt_hash(base) == prompt_hash(prompt(40, (4, "a")))
    others = [
        prompt(40, (4, "b")),
        prompt(40, (5, "a")),
        prompt(41, (4, "a")),
        prompt(40, (4, "a"), first_token=1),
        prompt(40, (4, "a"), namespace="n"),
        prompt(40),
    ]
    assert len({prompt_hash(other) for other in [base, *others]}) == 7


def test_what_is_kept_for_choices_without_a_slot_goes_with_the_last_of_them_and_once():
    calls = []
    tensors = PromptTensors(2, kv=torch.zeros(1), give_back=lambda: calls.append(1))
    tensors.admitted()
    assert not calls
    assert tensors.kv is not None
    tensors.admitted()
    tensors.close()
    assert calls == [1]
    assert tensors.kv is None
