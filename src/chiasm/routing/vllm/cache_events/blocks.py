"""Which blocks a server holds, as far as its events say, and which starts of prompts end in them."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from chiasm.routing.lru import Lru
from chiasm.routing.vllm.cache_events.messages import BlockHash

_MAX_BLOCKS = 131_072
_MAX_STARTS = 65_536
_MAX_CALLS = 4096
_MAX_ENDED = 512
"""Calls whose events are still on their way, with all starts of their prompts; where none ever come, that many stay."""


class Served(NamedTuple):
    """A prompt that a server has computed: its length, and its starts by key with the tokens in them."""

    num_tokens: int
    starts: Sequence[tuple[str, int]]


class _Block:
    __slots__ = ("children", "depth", "parent", "starts")

    def __init__(self, parent: BlockHash | None, depth: int) -> None:
        self.parent = parent
        self.depth = depth  # blocks up to its end
        self.children: set[BlockHash] = set()
        self.starts: set[str] = set()


class HeldBlocks:
    """One engine's blocks as a tree; whoever needs a block needs those before it. Bounded: the oldest are let go of.

    What was let go of, or never seen from the prompt's beginning, is unknown, which is not the same as evicted.
    """

    def __init__(
        self, max_blocks: int = _MAX_BLOCKS, max_starts: int = _MAX_STARTS, max_calls: int = _MAX_CALLS
    ) -> None:
        self._max_blocks = max_blocks
        self._max_starts = max_starts
        self._blocks: OrderedDict[BlockHash, _Block] = OrderedDict()
        self._ends: OrderedDict[str, BlockHash] = OrderedDict()  # by start, the block that it ends in
        self._last: Lru[BlockHash] = Lru(max_calls)  # by call, its deepest block so far
        self._unplaced: Lru[Served] = Lru(
            min(max_calls, _MAX_ENDED)
        )  # by call, what has ended before all of its events came
        self._block_size = 0

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def num_starts(self) -> int:
        """Starts that are tied to a block."""
        return len(self._ends)

    def stored(self, call: str | None, hashes: Sequence[BlockHash], parent: BlockHash | None, block_size: int) -> None:
        """Blocks were stored, or found in the cache, one after the other, for a call."""
        if parent is not None and parent not in self._blocks:
            return  # how deep they are is not known
        self._block_size = block_size
        for name in hashes:
            block = self._blocks.get(name)
            if block is None:
                above = self._blocks[parent] if parent is not None else None
                block = self._blocks[name] = _Block(parent, above.depth + 1 if above is not None else 1)
                if above is not None:
                    above.children.add(name)
            self._blocks.move_to_end(name)
            parent = name
        if call is not None and parent is not None:
            self._last.put(call, parent)
            if (ended := self._unplaced.get(call)) is not None:
                self._place(call, ended)
        while len(self._blocks) > self._max_blocks:
            self._drop([next(iter(self._blocks))])

    def removed(self, hashes: Iterable[BlockHash]) -> Collection[str]:
        """Blocks were evicted; returns the starts that are not whole any more."""
        return self._drop(hashes)

    def clear(self) -> None:
        """Forget everything, as when nothing is known."""
        self._blocks.clear()
        self._ends.clear()
        self._last.clear()
        self._unplaced.clear()

    def served(self, call: str, prompt: Served) -> None:
        """A call has ended: its prompt's starts are tied to their last blocks, now or when all blocks are known."""
        self._place(call, prompt)

    def _place(self, call: str, prompt: Served) -> None:
        last = self._last.get(call)
        block = self._blocks.get(last) if last is not None else None
        if last is None or block is None or block.depth * self._block_size <= prompt.num_tokens - self._block_size:
            self._unplaced.put(call, prompt)
            return
        self._unplaced.pop(call)
        self._last.pop(call)
        chain = self._chain(last)
        for key, num_tokens in prompt.starts:
            if (depth := min(num_tokens // self._block_size, len(chain))) > 0:
                self._tie(key, chain[depth - 1])

    def _chain(self, name: BlockHash | None) -> list[BlockHash]:
        """All blocks up to one, from the prompt's beginning."""
        found: list[BlockHash] = []
        while name is not None:
            found.append(name)
            name = self._blocks[name].parent
        found.reverse()
        return found

    def _tie(self, key: str, name: BlockHash) -> None:
        self._untie(key)
        self._ends[key] = name
        self._blocks[name].starts.add(key)
        if len(self._ends) > self._max_starts:
            self._untie(next(iter(self._ends)))

    def _untie(self, key: str) -> None:
        before = self._ends.pop(key, None)
        if before is not None:
            self._blocks[before].starts.discard(key)

    def _drop(self, hashes: Iterable[BlockHash]) -> set[str]:
        """Let go of blocks, and of all that come after them; returns the starts that ended there."""
        lost: set[str] = set()
        going = list(hashes)
        while going:
            name = going.pop()
            block = self._blocks.pop(name, None)
            if block is None:
                continue
            if block.parent is not None and (above := self._blocks.get(block.parent)) is not None:
                above.children.discard(name)
            going += block.children
            lost |= block.starts
        for key in lost:
            del self._ends[key]
        return lost
