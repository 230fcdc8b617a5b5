"""The step loop's body: plan a step, compute it, sample, hand out events. Runs on one thread."""

import logging
import time
from collections.abc import Sequence as Seq

import numpy as np
import torch

from chiasm.cache.block_hash import block_labels
from chiasm.cache.block_pool import BlockPool
from chiasm.cache.label import Deletions
from chiasm.engines.embedded.decoder.base import Decoder, DeepstackRows
from chiasm.engines.embedded.decoder.low_rank import adapted_rows
from chiasm.engines.embedded.decoder.rotary import Rotary
from chiasm.engines.embedded.kv import PrefixBlocks, SlotKV
from chiasm.engines.embedded.memory import is_out_of_memory
from chiasm.engines.embedded.sampling.sampler import Outcome, sample
from chiasm.engines.embedded.sequence import PlannedPrompt, Sequence
from chiasm.errors import ChiasmError, EngineStepError
from chiasm.observability.memory import MemoryPart
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.generation import ChoiceFinished, TokenEvent
from chiasm.scheduling.scheduler import Scheduler, State, Step
from chiasm.scheduling.scheduler import Sequence as Scheduled
from chiasm.scheduling.slots import SlotMove
from chiasm.scheduling.step_budget import StepBudget

logger = logging.getLogger(__name__)


class EngineCore:
    """Prefill and decode of all running sequences. Not thread-safe: one thread calls everything."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        num_slots: int,
        max_tokens: int,
        max_step_tokens: int,
        max_waiting: int,
        prefix_cache_bytes: int,
        budget: StepBudget,
    ) -> None:
        self._decoder = decoder
        self.max_tokens = max_tokens
        self._kv = SlotKV(
            num_layers=decoder.num_layers,
            num_slots=num_slots,
            num_kv_heads=decoder.shape.kv_heads,
            max_tokens=max_tokens,
            head_dim=decoder.shape.head_dim,
            dtype=decoder.dtype,
        )
        self._blocks = PrefixBlocks(self._kv, prefix_cache_bytes)
        self.pool = BlockPool(self._blocks.num_blocks)
        self._deletions = Deletions()
        self.scheduler = Scheduler(num_slots=num_slots, max_step_tokens=max_step_tokens, max_waiting=max_waiting)
        self._budget = budget
        self._sequences: dict[int, Sequence] = {}
        # per slot: the token to feed next, its position, and how many tokens the slot holds
        self._next_token = np.zeros(num_slots, np.int64)
        self._next_position = np.zeros(num_slots, np.int64)
        self._context = np.zeros(num_slots, np.int64)
        self._peak_kv_tokens = 0
        self._positions = decoder.rotary(np.arange(max_tokens + 1, dtype=np.int64)[None])
        self.totals = {
            "steps": 0,
            "prefill_tokens": 0,
            "prefill_tokens_ahead": 0,
            "decode_tokens": 0,
            "cached_prompt_tokens": 0,
            "taken_prompt_tokens": 0,
            "failed_steps": 0,
            "out_of_memory": 0,
            "cancelled": 0,
        }

    @property
    def kv_layout(self) -> tuple[int, int, int, torch.dtype]:
        """Layers, kv_heads, head_dim and type of keys and values."""
        shape = self._decoder.shape
        return self._decoder.num_layers, shape.kv_heads, shape.head_dim, self._decoder.dtype

    @property
    def kv_bytes_per_token(self) -> int:
        """What a token of a running sequence takes."""
        return self._kv.bytes_per_token

    def memory_parts(self) -> tuple[MemoryPart, ...]:
        """Keys and values of running sequences, and those kept for reuse. From any thread."""
        num_tokens = sum(sequence.num_kv_tokens for sequence in list(self._sequences.values()))
        slots = MemoryPart(
            name="kv_slots",
            kind="requests",
            used_bytes=num_tokens * self._kv.bytes_per_token,
            reserved_bytes=self._kv.data.nbytes,
            peak_bytes=self._peak_kv_tokens * self._kv.bytes_per_token,
        )
        blocks = MemoryPart(
            name="prefix_blocks",
            kind="cache",
            used_bytes=len(self.pool) * self._blocks.block_bytes,
            reserved_bytes=self._blocks.num_blocks * self._blocks.block_bytes,
        )
        return slots, blocks

    @property
    def num_open(self) -> int:
        """Sequences that have not ended."""
        return len(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `OverloadedError`."""
        self.scheduler.add(sequence.scheduled)
        self._sequences[sequence.scheduled.key] = sequence

    def extend(self, sequences: Seq[Sequence], rows: Seq[torch.Tensor], num_missing_tokens: int) -> None:
        """More pictures of a prompt are there, whose choices the sequences are; harmless for those that have ended."""
        sequences[0].tensors.rows.extend(rows)
        for sequence in sequences:
            self.scheduler.set_missing(sequence.scheduled, num_missing_tokens)
            if not num_missing_tokens:
                sequence.completed_s = time.perf_counter()

    def cancel(self, sequence: Sequence) -> None:
        """Drop a sequence without a word to its sink; harmless when it has ended."""
        if self._sequences.get(sequence.scheduled.key) is sequence:
            self.totals["cancelled"] += 1
            self._release(sequence)

    def forget(self, deletion: Deletion) -> tuple[int, int]:
        """Delete prefix blocks, also what sequences under way would leave; returns how many went, and are pinned."""
        self._deletions.add(deletion, time.perf_counter())
        places, num_pinned = self.pool.forget(deletion)
        self._blocks.scrub(places)
        return len(places), num_pinned

    def close(self) -> None:
        """Give back the decoder's threads and memory. No step may follow."""
        self._decoder.close()

    def fail_all(self, error: ChiasmError) -> None:
        """End everything with an error."""
        for sequence in list(self._sequences.values()):
            self._fail(sequence, error)

    @torch.inference_mode()
    def step(self) -> None:
        """Compute one step, if there is anything to. A failure ends its sequences and leaves the engine running."""
        start_s = time.perf_counter()
        step = self.scheduler.plan(self._admit, self._budget.max_media_tokens(self.scheduler.demand, start_s))
        if step.is_empty:
            return
        rows = [self._owner(slot) for slot in range(step.num_decoding)]
        finishing = [self._sequences[chunk.sequence.key] for chunk in step.chunks if chunk.is_last]
        try:
            outcomes = self._compute(step, [*rows, *finishing])
        except Exception as error:  # noqa: BLE001 - the engine's border: whatever the model raises ends this step only
            self._abandon(step, rows, error)
            return
        self._count(step, start_s)
        for scheduled, move in self.scheduler.complete(step):
            self._start_decoding(self._sequences[scheduled.key], move)
        self._hand_out([*rows, *finishing], outcomes)
        self._keep_prefixes(finishing)

    def _compute(self, step: Step, sampling: Seq[Sequence]) -> list[Outcome]:
        last = list(range(step.num_decoding))
        end = step.num_decoding
        for chunk in step.chunks:
            end += chunk.num_tokens
            if chunk.is_last:
                last.append(end - 1)
        hidden = self._forward(step, torch.tensor(last, dtype=torch.int64) if len(last) < end else None)
        if not sampling:
            return []
        return sample(self._decoder.logits(hidden), [sequence.sampler for sequence in sampling])

    def _forward(self, step: Step, wanted: torch.Tensor | None) -> torch.Tensor:
        n = step.num_decoding
        prompts = [self._sequences[chunk.sequence.key].prompt for chunk in step.chunks]
        owners = [(self._owner(slot).tensors.adapter, 1) for slot in range(n)]
        owners += [(self._sequences[one.sequence.key].tensors.adapter, one.num_tokens) for one in step.chunks]
        ids = [self._next_token[:n]] if n else []
        rotary = [self._positions[torch.from_numpy(self._next_position[:n])]] if n else []
        for chunk, prompt in zip(step.chunks, prompts, strict=True):
            tokens = slice(chunk.start, chunk.start + chunk.num_tokens)
            ids.append(prompt.token_ids[tokens])
            rotary.append(prompt.rotary[tokens])
        x = self._decoder.embed(torch.from_numpy(np.concatenate(ids)))
        deepstack = self._place_embeddings(x, step)
        return self._decoder.forward(
            x,
            Rotary.cat(rotary),
            self._kv.data,
            self._context[:n],
            step.chunks,
            deepstack,
            wanted,
            adapted_rows(owners),
        )

    def _place_embeddings(self, x: torch.Tensor, step: Step) -> DeepstackRows | None:
        """Overwrite placeholder rows of `x`; returns the further levels, if the model has any."""
        at, values = [], []
        start = step.num_decoding
        for chunk in step.chunks:
            sequence = self._sequences[chunk.sequence.key]
            is_row = sequence.prompt.is_embedding_row[chunk.start : chunk.start + chunk.num_tokens]
            here = np.flatnonzero(is_row)
            if len(here):
                at.append(here + start)
                first = sequence.prompt.num_embedding_rows(chunk.start)
                values += sequence.tensors.rows.between(first, first + len(here))
            start += chunk.num_tokens
        if not at:
            return None
        rows, packed = torch.from_numpy(np.concatenate(at)), torch.cat(values).to(x.dtype)
        hidden = self._decoder.hidden_size
        x[rows] = packed[:, :hidden]
        if packed.shape[1] == hidden:
            return None
        return DeepstackRows(rows, packed[:, hidden:].view(len(rows), -1, hidden).transpose(0, 1))

    def _admit(self, scheduled: Scheduled, slot: int) -> int:
        """Fill a slot with what need not be computed; at least one prompt token is left."""
        sequence = self._sequences[scheduled.key]
        sequence.admitted_s = time.perf_counter()
        if sequence.tensors.kv is not None:
            num_tokens = sequence.prompt.num_tokens - 1
            self._kv.write(slot, sequence.tensors.kv, num_tokens)
            self.totals["taken_prompt_tokens"] += num_tokens
        else:
            num_tokens = sequence.num_cached_tokens = self._reuse(sequence.prompt, slot)
            self.totals["cached_prompt_tokens"] += num_tokens
        sequence.tensors.admitted()
        return num_tokens

    def _reuse(self, prompt: PlannedPrompt, slot: int) -> int:
        """Fill a slot from the prefix cache."""
        places = self.pool.match(prompt.reusable_hashes)
        return self._blocks.copy_in(places, slot) if places else 0

    def _start_decoding(self, sequence: Sequence, move: SlotMove | None) -> None:
        if move is not None:
            displaced = 0 if move.displaced is None else self._sequences[move.displaced].num_kv_tokens
            self._kv.move(move, sequence.prompt.num_tokens, displaced)
        slot = self.scheduler.slots.slot(sequence.scheduled.key)
        self._context[slot] = sequence.prompt.num_tokens - 1
        self._next_position[slot] = sequence.prompt.next_position - 1
        if sequence.tensors.is_kv_wanted and sequence.tensors.computed_kv is None:
            sequence.tensors.computed_kv = self._kv.read(slot, sequence.prompt.num_tokens)
        sequence.first_token_s = time.perf_counter()

    def _hand_out(self, sequences: Seq[Sequence], outcomes: Seq[Outcome]) -> None:
        ended: list[tuple[Sequence, list[TokenEvent | ChoiceFinished]]] = []
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            if isinstance(outcome, ChiasmError):
                self._fail(sequence, outcome)
                continue
            sequence.output_ids.append(outcome.token_id)
            slot = self.scheduler.slots.slot(sequence.scheduled.key)
            self._next_token[slot] = outcome.token_id
            self._context[slot] += 1
            self._next_position[slot] += 1
            events = sequence.output.push(outcome)
            if isinstance(events[-1], ChoiceFinished):
                ended.append((sequence, events))
            else:
                sequence.sink.push(events)
        for sequence, events in ended:
            self._keep(sequence, sequence.all_hashes())
            self._release(sequence)
            sequence.sink.push(events)  # last, so that whoever hears of the end finds everything free

    def _keep_prefixes(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            if self._sequences.get(sequence.scheduled.key) is sequence:
                self._keep(sequence, sequence.prompt.hashes)

    def _keep(self, sequence: Sequence, hashes: Seq[bytes]) -> None:
        prompt = sequence.prompt
        if self._deletions.cover(prompt.label, sequence.tensors.begun_s):
            return
        labels = block_labels(len(hashes), prompt.media, prompt.cache_salt)
        self._blocks.copy_out(self.scheduler.slots.slot(sequence.scheduled.key), self.pool.insert(hashes, labels))

    def _release(self, sequence: Sequence) -> None:
        del self._sequences[sequence.scheduled.key]
        move = self.scheduler.end(sequence.scheduled)
        if move is not None:
            for per_slot in (self._next_token, self._next_position, self._context):
                per_slot[move.target] = per_slot[move.source]
            self._kv.move(move, int(self._context[move.target]))

    def _fail(self, sequence: Sequence, error: ChiasmError) -> None:
        if sequence.scheduled.state in (State.PREFILLING, State.DECODING):
            self._kv.scrub(self.scheduler.slots.slot(sequence.scheduled.key), sequence.num_kv_tokens + 1)
        self._release(sequence)
        sequence.sink.fail(error)

    def _abandon(self, step: Step, rows: Seq[Sequence], error: Exception) -> None:
        logger.error("A step failed; its sequences end", exc_info=error)
        self.totals["failed_steps"] += 1
        self.totals["out_of_memory"] += is_out_of_memory(error)
        for sequence in {*rows, *(self._sequences[chunk.sequence.key] for chunk in step.chunks)}:
            self._fail(sequence, EngineStepError(f"The model failed in this request: {type(error).__name__}"))

    def _owner(self, slot: int) -> Sequence:
        key = self.scheduler.slots.owner(slot)
        assert key is not None, f"slot {slot} has no owner"
        return self._sequences[key]

    def _count(self, step: Step, start_s: float) -> None:
        self._budget.see(step.num_tokens, time.perf_counter() - start_s)
        self.totals["steps"] += 1
        self.totals["decode_tokens"] += step.num_decoding
        num_tokens = step.num_decoding + int(self._context[: step.num_decoding].sum())
        num_tokens += sum(chunk.start + chunk.num_tokens for chunk in step.chunks)
        self._peak_kv_tokens = max(self._peak_kv_tokens, num_tokens)
        for chunk in step.chunks:
            self.totals["prefill_tokens"] += chunk.num_tokens
            if chunk.sequence.num_missing_tokens:
                self.totals["prefill_tokens_ahead"] += chunk.num_tokens
                self._sequences[chunk.sequence.key].ahead_s.append((start_s, time.perf_counter()))
