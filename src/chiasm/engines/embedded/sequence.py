"""What the engine computes with: planned prompts and the sequences made of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chiasm.cache.block_hash import BLOCK_TOKENS, MediaSpan, block_hashes
from chiasm.cache.label import CacheLabel
from chiasm.engines.embedded.decoder.low_rank import ArrangedAdapter
from chiasm.engines.embedded.decoder.rotary import Rotary
from chiasm.engines.embedded.families.base import PlacedImage
from chiasm.engines.embedded.output.stream import OutputStream
from chiasm.engines.embedded.rows import PictureRows
from chiasm.engines.embedded.sampling.sampler import SequenceSampler
from chiasm.errors import ChiasmError
from chiasm.protocol.generation import ChoiceFinished, TokenEvent
from chiasm.scheduling.scheduler import Sequence as Scheduled


@dataclass(frozen=True)
class PlannedPrompt:
    """A prompt as the decoder sees it; shared by all choices of a request.

    Attributes:
        token_ids: [num_tokens].
        rotary: Rotary tables of the prompt's positions.
        next_position: Position of the first output token.
        images: Where pictures stand, in order.
        media: The same places with the embeddings' keys, for the prefix hashes.
        is_embedding_row: [num_tokens], True where an embedding row replaces the token.
        model_revision: Of the model that it is planned for, with that of the adapter.
        cache_salt: Of the request.
        namespace: What must never share KV with others: the model, and the scope of its caches.
    """

    token_ids: NDArray[np.int64]
    rotary: Rotary
    next_position: int
    images: tuple[PlacedImage, ...]
    media: tuple[MediaSpan, ...]
    is_embedding_row: NDArray[np.bool_]
    model_revision: str
    cache_salt: str
    namespace: str
    hashes: tuple[bytes, ...]

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.token_ids)

    @property
    def label(self) -> CacheLabel:
        """By what its keys and values can be deleted."""
        return CacheLabel(self.cache_salt, frozenset(span.identity for span in self.media))

    @property
    def reusable_hashes(self) -> tuple[bytes, ...]:
        """Hashes of the blocks that may come from a cache: at least one token is left to compute."""
        return self.hashes[: (self.num_tokens - 1) // BLOCK_TOKENS]

    def num_embedding_rows(self, num_tokens: int) -> int:
        """Embedding rows among the first `num_tokens` tokens."""
        return int(self.is_embedding_row[:num_tokens].sum())

    def num_missing_tokens(self, num_images: int) -> int:
        """Tokens at the end that cannot be computed with the first pictures alone."""
        return self.num_tokens - self.images[num_images].offset if num_images < len(self.images) else 0


class EventSink(Protocol):
    """Where a choice's events go. Called on the engine's thread; must neither block nor raise."""

    def push(self, events: list[TokenEvent | ChoiceFinished]) -> None:
        """New events, in order."""
        ...

    def fail(self, error: ChiasmError) -> None:
        """The choice ends with an error; nothing follows."""
        ...


@dataclass(eq=False)
class PromptTensors:
    """What the choices of one request share besides the prompt itself.

    Attributes:
        num_choices: Choices without a slot.
        rows: Of the pictures, but for those that lie in prefix blocks that are pinned, or in `kv`. The engine's
            thread alone adds to them once the sequences are submitted.
        kv: [layers, 2, kv_heads, num_tokens, head_dim] of the whole prompt, computed elsewhere.
        adapter: With which the prompt and what follows are computed.
        is_kv_wanted: Whether to keep the prompt's keys and values for another worker.
        computed_kv: Those, once the prompt is computed; same layout as `kv`.
        give_back: Frees what is kept only until all choices have their slots.
        begun_s: When the request came (`time.perf_counter()`).
    """

    num_choices: int = 1
    rows: PictureRows = field(default_factory=PictureRows)
    kv: torch.Tensor | None = None
    adapter: ArrangedAdapter | None = None
    is_kv_wanted: bool = False
    computed_kv: torch.Tensor | None = None
    give_back: Callable[[], None] | None = None
    begun_s: float = field(default_factory=time.perf_counter)
    _lock: Lock = field(default_factory=Lock)

    def admitted(self) -> None:
        """One choice has its slot. Called on the engine's thread."""
        self.num_choices -= 1
        if not self.num_choices:
            self.kv = None
            self.close()

    def close(self) -> None:
        """Free what is kept for choices without a slot: any thread may, once those are cancelled. Once is enough."""
        with self._lock:
            give_back, self.give_back = self.give_back, None
        if give_back is not None:
            give_back()


@dataclass(eq=False)
class Sequence:
    """One output under way. Owned by the engine's thread from submission on.

    Attributes:
        completed_s: When the last of its pictures came.
        ahead_s: When steps computed parts of its prompt before that.
    """

    scheduled: Scheduled
    prompt: PlannedPrompt
    tensors: PromptTensors
    sampler: SequenceSampler
    output: OutputStream
    sink: EventSink
    output_ids: list[int] = field(default_factory=list)
    completed_s: float = field(default_factory=time.perf_counter)
    ahead_s: list[tuple[float, float]] = field(default_factory=list)
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    num_cached_tokens: int = 0

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose keys and values are in the slot: all but the last sampled one."""
        return self.scheduled.num_computed_tokens + max(0, len(self.output_ids) - 1)

    def all_hashes(self) -> list[bytes]:
        """Block hashes of prompt and output, as far as their KV is computed."""
        tokens = np.concatenate([self.prompt.token_ids, np.asarray(self.output_ids[:-1], dtype=np.int64)])
        return block_hashes(tokens, self.prompt.media, self.prompt.namespace)
