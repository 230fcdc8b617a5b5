"""An engine that takes time: the real scheduler chooses each step, the calibration says how long it takes.

Steps that only decode are taken together until somebody ends, something comes or what slows them down begins or ends,
so that a simulation costs by event and not by token.
"""

import math
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

import simpy

from chiasm.scheduling.encode_budget import EncodeBudget
from chiasm.scheduling.encode_line import EncodeLine
from chiasm.scheduling.scheduler import Scheduler, Step
from chiasm.scheduling.scheduler import Sequence as Scheduled
from chiasm.scheduling.step_budget import StepBudget
from chiasm.scheduling.turns import Demand, Turn, Turns
from chiasm.simulator.calibration import Calibration, Sharing
from chiasm.simulator.clock import Process
from chiasm.simulator.device import Busy, Device
from chiasm.simulator.generation import Generation
from chiasm.simulator.host import Cores, Work

Steps = Generator[simpy.Event, Any, int]

_MAX_WAITING = 1_000_000
"""Of the scheduler. A simulation bounds its requests itself, and overload is a result."""


@dataclass(frozen=True, slots=True, eq=False)
class _Picture:
    """One that waits for the tower; see `Encodable`."""

    owner: str
    num_embeddings: int
    on_encoded: Callable[[], None]


class Engine:
    """One worker's arithmetic: batches of pictures and steps, one after the other."""

    def __init__(
        self,
        env: simpy.Environment,
        calibration: Calibration,
        device: Device,
        busy: Busy,
        cores: Cores,
        *,
        is_apart: bool,
        kv_tokens: int = 0,
    ) -> None:
        """Begin to work.

        Args:
            env: Whose time it is.
            calibration: What work costs.
            device: What it runs on.
            busy: Where its work is counted.
            cores: Where it is done.
            is_apart: It is an encoder's: no steps, and `encoder_factor` applies.
            kv_tokens: Tokens of context it holds; 0 is no limit.
        """
        self._env, self._costs, self._device, self._busy, self._cores = env, calibration, device, busy, cores
        self._work: Work | None = None  # the last that was begun
        self._is_apart = is_apart
        self._max_kv_tokens = kv_tokens or math.inf
        self._scheduler = Scheduler(
            num_slots=calibration.max_running, max_step_tokens=calibration.max_step_tokens, max_waiting=_MAX_WAITING
        )
        self._turns = Turns()
        self._budget = StepBudget(calibration.max_media_step_s)
        self._encode_budget = EncodeBudget(calibration.max_encode_tokens, calibration.max_encode_s)
        self._keys = count()
        self._open: dict[int, Generation] = {}
        self._outside: deque[Generation] = deque()  # those for which there is no room yet
        self._pictures: EncodeLine[_Picture] = EncodeLine()
        self._ends: list[tuple[int, int]] = []  # (step at which a generation ends, its key)
        self._num_steps = self._num_context_tokens = self._num_media = 0
        self._num_held_tokens = 0  # promised to generations that have begun
        self._stall_s = 0.0  # for which generations are to stand still
        self._ring: Callable[[], object] | None = None  # while it sleeps: what wakes it
        self._withdrawn: list[Generation] = []
        self._owed: list[int] = []  # visual tokens of pictures that the next prompt's step encodes
        self._process = env.process(self._run())
        if not is_apart:
            device.watch(self._awake)
        sharing = calibration.sharing or Sharing(num_cores=1)
        self._encode_cores, self._prefill_cores = sharing.encode, sharing.prefill

    @property
    def num_decoding(self) -> int:
        """Generations past their first token."""
        return len(self._ends)

    def media_changed(self, by: int) -> None:
        """So many more pictures are in work in its own process."""
        had_media = self._num_media > 0
        self._num_media += by
        if had_media != (self._num_media > 0) and self._device.interference.engine_by_media:
            self._awake()

    def submit(self, generation: Generation) -> None:
        """Queue a generation; its events tell how it goes."""
        self._outside.append(generation)
        if self._ends:
            self._stall_s += self._costs.stall_s
        self._awake()

    def supply(self, generation: Generation, num_missing_tokens: int) -> None:
        """More of a prompt can be computed; harmless when it has ended."""
        generation.num_missing_tokens = num_missing_tokens
        if generation.scheduled is not None:
            self._scheduler.set_missing(generation.scheduled, num_missing_tokens)
        self._awake()

    def withdraw(self, generation: Generation) -> None:
        """End a generation before the next step; its events never happen. Harmless when it has ended."""
        self._withdrawn.append(generation)
        self._awake()

    def stop(self, error: Exception) -> None:
        """Die: all work is lost, and generations see the error."""
        lost = [*self._open.values(), *self._outside]
        self._open.clear()
        self._outside.clear()
        self._device.unwatch(self._awake)
        self._ring = None
        self._process.interrupt()
        if self._work is not None:
            self._work.abandon()
        for generation in lost:
            generation.fail(error)

    def encode(self, owner: str, num_tokens: int, on_encoded: Callable[[], None]) -> None:
        """Queue a picture of a request; `on_encoded` is called when its embedding is there.

        Where the tower runs within steps, that is at once, and the next step that computes a prompt takes longer.
        """
        if self._costs.tower_in_step and not self._is_apart:
            self._owed.append(num_tokens)
            on_encoded()
            return
        self._pictures.add(_Picture(owner, num_tokens, on_encoded))
        self._awake()

    def _awake(self) -> None:
        if self._ring is not None:
            ring, self._ring = self._ring, None
            ring()

    def _run(self) -> Process:
        with suppress(simpy.Interrupt):
            yield from self._serve()

    def _compute(self, seconds: float, cores: float) -> Work:
        """Begin work; it is abandoned when the engine stops."""
        self._work = work = self._cores.work(seconds, cores)
        return work

    def _serve(self) -> Process:
        while True:
            if self._outside or self._withdrawn:
                self._let_in()
            if self._stall_s:
                yield from self._stand_still()
            demand = self._scheduler.demand
            turn = self._turns.next(demand, has_pictures=bool(self._pictures))
            if turn is Turn.ENCODE:
                yield from self._encode_batch()
            elif turn is Turn.STEP and self._pictures:
                num_steps = yield from self._step(demand, 1 + self._turns.num_more(demand))
                self._turns.took_more(demand, max(num_steps - 1, 0))
            elif turn is Turn.STEP:
                yield from self._step(demand)
            else:
                wake = self._env.event()
                self._ring = wake.succeed
                yield wake

    def _stand_still(self) -> Process:
        """The process has something else to do; that takes cores where the request's own work is counted."""
        seconds, self._stall_s = self._stall_s, 0.0
        yield self._compute(seconds, cores=0.0).done

    def _step(self, demand: Demand, max_steps: float = math.inf) -> Steps:
        """One step, or several that only decode; returns how many: none where prompts wait for their first picture."""
        most = self._budget.max_media_tokens(demand, self._env.now)
        step = self._scheduler.plan(self._admitted, most)
        if step.is_empty:
            return 0
        if not step.chunks:
            return (yield from self._decode(step, max_steps))
        yield from self._prefill(step)
        return 1

    def _encode_batch(self) -> Process:
        batch = self._pictures.take(self._encode_budget.num_embeddings)
        sizes = [picture.num_embeddings for picture in batch]
        seconds = self._costs.encode_s(sizes)
        if self._is_apart:
            seconds *= self._costs.encoder_factor * self._device.encode_factor()
            with self._device.encoding, self._device.company:
                work = self._compute(seconds, self._encode_cores)
                yield work.done
            took_s = work.took_s(seconds)
            self._busy.add("encode", took_s)
        else:
            took_s = yield from self._encode_in_parts(seconds)
        if sum(sizes):
            self._encode_budget.see(sum(sizes), took_s)
        for picture in batch:
            picture.on_encoded()

    def _encode_in_parts(self, seconds: float) -> Generator[simpy.Event, Any, float]:
        """Returns how long it took, without the steps in between."""
        num_parts, busy_s = self._costs.encode_parts, 0.0
        for part in range(num_parts):
            self._let_in()
            demand = self._scheduler.demand
            if part and self._turns.may_interrupt(demand) and not self._turns.owes_batch(self._env.now):
                start_s = self._env.now
                yield from self._step(demand, 1)
                self._turns.interrupted(start_s, self._env.now)
            with self._device.computing, self._device.company:
                work = self._compute(seconds / num_parts, self._encode_cores)
                yield work.done
            busy_s += work.took_s(seconds / num_parts)
        self._busy.add("encode", busy_s)
        return busy_s

    def _let_in(self) -> None:
        """Take out what was withdrawn, then give the scheduler what has room for its whole context."""
        while self._withdrawn:
            self._take_out(self._withdrawn.pop())
        while self._outside and self._has_room(self._outside[0]):
            generation = self._outside.popleft()
            self._num_held_tokens += generation.num_tokens
            key = next(self._keys)
            generation.scheduled = Scheduled(
                key=key,
                num_prompt_tokens=generation.num_prompt_tokens,
                has_media=generation.has_media,
                num_missing_tokens=generation.num_missing_tokens,
            )
            self._open[key] = generation
            self._scheduler.add(generation.scheduled)

    def _has_room(self, generation: Generation) -> bool:
        """Whether its context fits; one that never would is let in alone."""
        return not self._open or self._num_held_tokens + generation.num_tokens <= self._max_kv_tokens

    def _admitted(self, scheduled: Scheduled, slot: int) -> int:
        return self._open[scheduled.key].num_known_tokens

    def _prefill(self, step: Step) -> Process:
        prefill_s = self._costs.chunks_s((chunk.start, chunk.num_tokens) for chunk in step.chunks)
        cpu_s = prefill_s * self._prefill_cores
        prefill_s *= self._device.prefill_factor()
        decode_s = 0.0
        if step.num_decoding:
            decode_s = self._costs.step_s(step.num_decoding, self._num_context_tokens)
            cpu_s += decode_s * self._costs.step_cores(step.num_decoding, decode_s, self._num_context_tokens)
        tower_s = self._costs.encode_s(self._owed) if self._owed else 0.0
        self._owed.clear()
        factor = self._device.step_factor(self._num_media)
        prefill_s, decode_s = prefill_s * factor, decode_s * factor
        all_s, cpu_s = prefill_s + decode_s + tower_s, factor * cpu_s + tower_s * self._encode_cores
        with self._device.computing:
            work = self._compute(all_s, cpu_s / all_s if all_s else 1.0)
            yield work.done
        took_s = work.took_s(all_s)
        self._budget.see(step.num_tokens, took_s)
        for what, seconds in (("encode", tower_s), ("prefill", prefill_s), ("decode", decode_s)):
            self._busy.add(what, took_s * seconds / all_s if all_s else 0.0)
        promoted = [self._open[scheduled.key] for scheduled, _ in self._scheduler.complete(step)]
        self._took(1, step.num_decoding)
        for generation in promoted:
            self._begin(generation)
        kept_s = sum([self._costs.after_prompt.at(generation.num_prompt_tokens) for generation in promoted])
        if kept_s:
            with self._device.computing:
                yield self._compute(kept_s, cores=1.0).done

    def _begin(self, generation: Generation) -> None:
        """A prompt is computed, and with it the first token."""
        assert generation.scheduled is not None, "only what was scheduled is computed"
        generation.first.succeed()
        self._num_context_tokens += generation.num_prompt_tokens
        if generation.num_output_tokens > 1:
            heappush(self._ends, (self._num_steps + generation.num_output_tokens - 1, generation.scheduled.key))
        else:
            self._end(generation)

    def _decode(self, step: Step, max_steps: float) -> Steps:
        """All steps until the next generation ends, at most so many, or as many as are begun when something comes."""
        num_steps = int(min(self._ends[0][0] - self._num_steps, max_steps))
        started_s = self._env.now
        factor = self._device.step_factor(self._num_media)
        first_s = self._costs.step_s(step.num_decoding, self._num_context_tokens)
        cores = self._costs.step_cores(step.num_decoding, first_s, self._num_context_tokens)
        first_s *= factor
        growth_s = self._costs.context_s * step.num_decoding * factor  # of a step over the one before it
        work = self._compute(_sum_s(num_steps, first_s, growth_s), cores)
        self._ring = work.cut_short
        with self._device.computing:
            yield work.done
            self._ring = None
            if not work.is_over:
                num_steps = min(num_steps, _num_begun(work.progress_s, first_s, growth_s))
                rest_s = work.left_s(_sum_s(num_steps, first_s, growth_s))
                work.abandon()
                if rest_s > 0:
                    yield self._compute(rest_s, cores).done
        self._busy.add("decode", self._env.now - started_s)
        self._took(num_steps, step.num_decoding)
        return num_steps

    def _took(self, num_steps: int, num_decoding: int) -> None:
        """Generations that were decoding have so many tokens more; those that have all end."""
        self._num_steps += num_steps
        self._num_context_tokens += num_steps * num_decoding
        while self._ends and self._ends[0][0] <= self._num_steps:
            _, key = heappop(self._ends)
            self._end(self._open[key])

    def _end(self, generation: Generation) -> None:
        self._num_context_tokens -= generation.num_prompt_tokens + generation.num_output_tokens - 1
        self._release(generation)
        generation.done.succeed()

    def _take_out(self, generation: Generation) -> None:
        """One that has no token yet; one that has goes on to its end."""
        scheduled = generation.scheduled
        if generation in self._outside:
            self._outside.remove(generation)
        elif scheduled is not None and scheduled.key in self._open and not generation.first.triggered:
            self._release(generation)

    def _release(self, generation: Generation) -> None:
        assert generation.scheduled is not None, "only what was scheduled has a slot"
        del self._open[generation.scheduled.key]
        self._scheduler.end(generation.scheduled)
        self._num_held_tokens -= generation.num_tokens


def _sum_s(num_steps: int, first_s: float, growth_s: float) -> float:
    """Seconds of so many steps, each longer than the one before."""
    return num_steps * first_s + growth_s * num_steps * (num_steps - 1) / 2


def _num_begun(elapsed_s: float, first_s: float, growth_s: float) -> int:
    """Steps that have begun after some time: at least one, the last one perhaps only just."""
    if growth_s <= 0.0:
        return int(elapsed_s / first_s) + 1 if first_s > 0 else 1
    half = first_s - growth_s / 2
    ended = (math.sqrt(half * half + 2 * growth_s * elapsed_s) - half) / growth_s
    return int(ended + 1e-9) + 1
