"""Which pictures of a prompt need no embedding, because keys and values of their tokens are there already."""

from collections.abc import Callable
from dataclasses import dataclass

from chiasm.cache.block_hash import BLOCK_TOKENS
from chiasm.cache.block_pool import BlockPool
from chiasm.engines.embedded.sequence import PlannedPrompt


@dataclass(frozen=True)
class Coverage:
    """The first `num_tokens` of a prompt need not be computed, and will still be there when it gets its slot.

    Attributes:
        first_image: Which of the prompt's pictures is the first that needs its embedding.
        give_back: Ends the promise.
    """

    num_tokens: int
    first_image: int
    give_back: Callable[[], None] | None = None


def pin_prefix(pool: BlockPool, prompt: PlannedPrompt) -> Coverage:
    """Pin what the prefix cache holds of a prompt with pictures. At least one token stays to be computed."""
    hashes = prompt.reusable_hashes
    num_blocks = pool.pin(hashes) if prompt.images else 0
    pinned = hashes[:num_blocks]
    return _coverage(prompt, num_blocks * BLOCK_TOKENS, (lambda: pool.unpin(pinned)) if pinned else None)


def covered_by_kv(prompt: PlannedPrompt, give_back: Callable[[], None]) -> Coverage:
    """All but the last token come with keys and values of another worker."""
    return _coverage(prompt, prompt.num_tokens - 1, give_back)


def _coverage(prompt: PlannedPrompt, num_tokens: int, give_back: Callable[[], None] | None) -> Coverage:
    first_image = sum(image.offset + image.num_tokens <= num_tokens for image in prompt.images)
    return Coverage(num_tokens, first_image, give_back)
