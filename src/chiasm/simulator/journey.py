"""One simulated request on its way: planned, encoded, prefilled, decoded; again where it fails, by the real ladder."""

from collections.abc import Generator, Iterable
from typing import Any

import simpy

from chiasm.errors import ChiasmError, EngineDeadError, HandleExpiredError, TransferError
from chiasm.routing.overlap import parts_of, saved_s
from chiasm.routing.plan import EncodeGroup, Plan
from chiasm.routing.recovery import Ladder, StageError
from chiasm.routing.view import Job
from chiasm.simulator.clock import Process
from chiasm.simulator.front import Front
from chiasm.simulator.generation import Generation
from chiasm.simulator.prefill import Failures, Prefill
from chiasm.simulator.prompt import ON_OFFER, Prompt
from chiasm.simulator.traffic import Request


class Journey:
    """Runs by `run`, which ends when the request has ended, well or not."""

    def __init__(self, front: Front, request: Request) -> None:
        self._front = front
        self._env = front.env
        self._request = request
        self._prompt = Prompt(request)
        self._ladder: Ladder | None = None
        self._is_done = False
        front.ledger.come()

    def run(self) -> Process:
        """From its arrival to its last token, or to the error that it ends with."""
        front, request = self._front, self._request
        if not request.pictures:
            front.texts.see(self._env.now)
        yield front.cores.work(front.truth.request.at(len(request.pictures)), front.sharing.request).done
        ladder = self._ladder = Ladder(front.settings, front.clock, front.truth.timeout_s)
        try:
            while not self._is_done:
                job = self._prompt.job(front.fleet, ladder, front.may_overlap)
                try:
                    plan = front.plan(job, ladder)
                except (EngineDeadError, HandleExpiredError) as error:
                    yield from self._until_somebody_returns(error, ladder)
                    continue
                yield from self._attempt(plan, job, ladder)
        except ChiasmError as error:
            front.ledger.record.fail(request.class_name, error.code, request.at_s)
        front.ledger.ended()

    def _until_somebody_returns(self, error: ChiasmError, ladder: Ladder) -> Process:
        worker = yield from self._front.returned(ladder.wait_until_s)
        if worker is None:
            raise error
        ladder.came_back(worker)

    def _attempt(self, plan: Plan, job: Job, ladder: Ladder) -> Process:
        is_ahead = self._is_ahead(plan, job, ladder)
        if plan.groups and not is_ahead:
            failures = yield from self._encode_all(plan.groups)
            self._encoding_failed(failures, ladder)
            if failures:
                return
        try:
            yield from self._generate(plan, job, ladder, is_ahead=is_ahead)
        except StageError as failure:
            self._front.fleet.blame(failure.worker, failure.error)
            self._step_down(failure, ladder)

    def _is_ahead(self, plan: Plan, job: Job, ladder: Ladder) -> bool:
        """Whether the prompt goes ahead of pictures that others encode, as production has it."""
        if not plan.groups or plan.prefill not in job.may_overlap or ladder.has_failures:
            return False
        return saved_s(job, self._front.known, plan.prefill, plan.groups) > 0

    def _step_down(self, failure: StageError, ladder: Ladder) -> None:
        """Put a failed try on the ladder. Raises its error where there is no step left."""
        if isinstance(failure.error, TransferError) and failure.pictures:
            index = self._front.fleet.embeddings
            producers = [index.producer(identity) for identity in failure.pictures]
            for identity in failure.pictures:
                index.forget(identity)
            ladder.embedding_failed(failure, [one for one in producers if one])
        else:
            ladder.generate_failed(failure)

    def _encoding_failed(self, failures: Failures, ladder: Ladder) -> None:
        for failure in failures:
            self._front.fleet.blame(failure.worker, failure.error)
            ladder.encode_failed(failure)

    def _encode_all(self, groups: Iterable[EncodeGroup]) -> Generator[simpy.Event, Any, Failures]:
        """Side by side; returns what failed when all have ended."""
        calls = [self._encode(group) for group in groups]
        if len(calls) == 1:
            found = [(yield from calls[0])]
        else:
            found = yield self._env.together(calls)
        return [one for one in found if one is not None]

    def _encode(self, group: EncodeGroup) -> Generator[simpy.Event, Any, StageError | None]:
        front, request = self._front, self._request
        chosen = [self._prompt.pictures[identity] for identity in group.identities]
        start_s = self._env.now
        work_s = sum(front.known.encode_s(group.worker, one.num_pixels) for one in chosen)
        try:
            with front.fleet.get(group.worker).encoding.work(work_s):
                yield front.workers[group.worker].encode(chosen, str(request.number))
        except ChiasmError as error:
            places = {one.identity: self._prompt.places[one.identity] for one in chosen}
            return StageError("encode", group.worker, error, places)
        front.note(group.worker, "encode", start_s, request)
        for picture in chosen:
            front.fleet.embeddings.offered(picture.identity, ON_OFFER, group.worker)
        transfer_s = front.truth.transfer.at(sum(one.num_tokens for one in chosen))
        yield front.cores.work(transfer_s, front.sharing.transfer).done
        return None

    def _generate(self, plan: Plan, job: Job, ladder: Ladder, *, is_ahead: bool) -> Process:
        """Prefill and decode. Raises `StageError` before the first token, and what happened after it."""
        front, request = self._front, self._request
        prefill = Prefill(front, request, self._prompt, plan, job)
        try:
            late = [part for group in plan.groups for part in parts_of(group)] if is_ahead else []
            failures = yield from prefill.run(late, self._encode)
        except ChiasmError as error:
            raise StageError("prefill", plan.prefill, error, {}) from error
        if failures:
            self._encoding_failed(failures, ladder)
            return
        decoding, generation, first_s = plan.prefill, prefill.generation, self._env.now
        if plan.decode is not None:
            decoding = plan.decode
            generation = yield from self._hand_over(decoding)
            first_s = self._env.now
        with front.fleet.get(decoding).decoding():
            try:
                yield generation.done
            except ChiasmError as error:
                front.fleet.blame(decoding, error)
                raise
        front.note(decoding, "decode", first_s, request)
        front.ledger.record.add(
            request.class_name, plan.path, request.at_s, first_s, self._env.now, request.output_tokens
        )
        self._is_done = True

    def _hand_over(self, worker: str) -> Generator[simpy.Event, Any, Generation]:
        """Keys and values go to a worker that decodes; returns when it has sent the first token."""
        front, request = self._front, self._request
        try:
            yield front.cores.work(front.truth.kv_transfer.at(request.prompt_tokens), front.sharing.transfer).done
            generation = front.workers[worker].generate(request, request.output_tokens, request.prompt_tokens)
            yield generation.first
        except ChiasmError as error:
            raise StageError("decode", worker, error, {}) from error
        return generation
