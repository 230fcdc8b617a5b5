"""The part of a simulated request until its prompt is computed, with what of its pictures is made on the way."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import simpy

from chiasm.errors import HandleExpiredError
from chiasm.routing.plan import EncodeGroup, Plan
from chiasm.routing.prediction import uncovered_tokens
from chiasm.routing.recovery import StageError
from chiasm.routing.view import Job
from chiasm.simulator.front import Front
from chiasm.simulator.generation import Generation
from chiasm.simulator.known import CHARS_PER_TOKEN
from chiasm.simulator.prompt import Prompt
from chiasm.simulator.traffic import Picture, Request

_NOTHING = nullcontext()

Failures = list[StageError]
Encoding = Generator[simpy.Event, Any, StageError | None]
Encode = Callable[[EncodeGroup], Encoding]
"""Gets embeddings from a worker; returns what failed, if it did."""


class Prefill:
    """One try at one worker.

    Attributes:
        generation: What the worker has of the request, once its prompt is there.
    """

    generation: Generation

    def __init__(self, front: Front, request: Request, prompt: Prompt, plan: Plan, job: Job) -> None:
        self._front = front
        self._env = front.env
        self._request = request
        self._prompt = prompt
        self._plan = plan
        self._job = job
        self._member = front.fleet.get(plan.prefill)
        self._worker = front.workers[plan.prefill]
        self._prefixed = [identity for identity, fate in plan.fates.items() if fate == "prefix"]
        self._missing: set[str] = set()

    def run(self, late: Sequence[EncodeGroup], encode: Encode) -> Generator[simpy.Event, Any, Failures]:
        """Until the prompt is computed; returns what failed of the pictures that were to follow it.

        Args:
            late: Calls for pictures that follow the prompt, each as soon as it has ended.
            encode: Makes such a call.

        Raises:
            StageError: Embeddings are gone that the worker cannot make itself.
            EngineDeadError: The worker died.
        """
        local = self._local()
        prefill_s, encode_s = self._load(local)
        encoding = self._member.encoding.work(encode_s) if local else _NOTHING
        with self._member.prefilling.work(prefill_s), encoding:
            if not self._front.truth.prefill_ahead:
                yield from self._before(local)
            start_s = self._env.now
            self._begin(local, late)
            failures = yield from self._follow(late, encode)
            if failures:
                self._worker.engine.withdraw(self.generation)
                return failures
            yield self.generation.first
        self._front.note(self._plan.prefill, "prefill", start_s, self._request)
        self._remember()
        return []

    def _load(self, local: Sequence[Picture]) -> tuple[float, float]:
        """What the router takes the worker to have to do for the request: seconds of its prompt, and of encoding."""
        known, name = self._front.known, self._plan.prefill
        num_tokens = uncovered_tokens(self._job, known, name, self._prefixed)
        return known.prefill_s(name, num_tokens), sum([known.encode_s(name, one.num_pixels) for one in local])

    def _before(self, local: Sequence[Picture]) -> Generator[simpy.Event, Any, None]:
        """What comes before the prompt where nothing goes ahead."""
        start_s = self._env.now
        if local:
            yield self._worker.encode(local, str(self._request.number))
            self._front.note(self._plan.prefill, "encode", start_s, self._request)
        elif self._front.truth.text_waits_for_media and "encode" in self._worker.info.roles:
            yield self._worker.pass_media_queue()

    def _begin(self, local: Sequence[Picture], late: Iterable[EncodeGroup]) -> None:
        """Queue the prompt, and what it is to wait for at the same worker."""
        is_ahead = self._front.truth.prefill_ahead
        self._missing = {identity for part in late for identity in part.identities}
        if is_ahead:
            self._missing |= {one.identity for one in local}
        self.generation = self._worker.generate(
            self._request,
            self._request.output_tokens if self._plan.decode is None else 1,
            self._num_known(),
            self._prompt.num_missing_tokens(self._missing),
        )
        if local and is_ahead:
            self._worker.encode(local, str(self._request.number), lambda one: self._supply([one.identity]))

    def _follow(self, late: Sequence[EncodeGroup], encode: Encode) -> Generator[simpy.Event, Any, Failures]:
        if not late:
            return []

        def one(part: EncodeGroup) -> Encoding:
            failure = yield from encode(part)
            if failure is None:
                self._supply(part.identities)
            return failure

        found = yield self._env.together([one(part) for part in late])
        return [failure for failure in found if failure is not None]

    def _supply(self, identities: Iterable[str]) -> None:
        self._missing.difference_update(identities)
        self._worker.engine.supply(self.generation, self._prompt.num_missing_tokens(self._missing))

    def _local(self) -> list[Picture]:
        """Pictures that the prefilling worker makes on its way: those left to it, and those that a cache has lost.

        Raises:
            HandleExpiredError: It cannot make what was lost.
        """
        local, lost = [], []
        for identity, fate in self._plan.fates.items():
            picture = self._prompt.pictures[identity]
            if fate == "local":
                local.append(picture)
            elif fate in ("embedding", "prefix") and not self._is_kept(identity):
                lost.append(picture)
        if lost and "encode" not in self._worker.info.roles:
            raise StageError(
                "prefill",
                self._plan.prefill,
                HandleExpiredError(f"{len(lost)} embeddings are gone from their caches"),
                {one.identity: self._prompt.places[one.identity] for one in lost},
            )
        return [*local, *lost]

    def _is_kept(self, identity: str) -> bool:
        """Whether the worker has an embedding, or who offered it still does."""
        producer = self._front.workers.get(self._front.fleet.embeddings.producer(identity))
        return self._worker.embeddings.has(identity) or (producer is not None and producer.embeddings.has(identity))

    def _num_known(self) -> int:
        """Tokens of the prompt that the worker really has of those that the router takes it to have."""
        prefix = self._job.known.get(self._plan.prefill)
        if prefix is None or not self._worker.prefixes.has(prefix.key):
            return 0
        of_pictures = sum(one.num_tokens for one in self._request.pictures if one.identity in self._prefixed)
        return of_pictures + prefix.num_chars // CHARS_PER_TOKEN

    def _remember(self) -> None:
        name, worker = self._plan.prefill, self._worker
        self._front.fleet.prefixes.served(self._prompt.prefixes, name)
        num_before = 0
        for prefix in self._prompt.prefixes:
            num_tokens = self._prompt.num_tokens(prefix)
            worker.prefixes.keep(prefix.key, num_tokens - num_before)
            num_before = num_tokens
        for picture in self._request.pictures:
            self._front.fleet.embeddings.held(picture.identity, name)
            worker.embeddings.keep(picture.identity, picture.num_tokens)
