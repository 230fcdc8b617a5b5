"""What a request may still try after a failure, and for how long.

The ladder of a picture: an encoder, another one under a fresh id, its pixels where the prompt is computed, and then
`embedding_unavailable`. The ladder of a generation: another worker, once. All of it before the first token and inside
the request's deadline; of the time that is left, a try gets an equal share with those that could follow it.

Failures of the request itself (`RequestError`) are nobody's fault and are never tried again. A generation that is not
streamed may answer only at its end, so nothing but the deadline, or its worker's health, ends the wait for it.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from chiasm.errors import (
    ChiasmError,
    DeadlineExceededError,
    EngineDeadError,
    EngineStepError,
    HandleExpiredError,
    OverloadedError,
    RequestCancelledError,
    RequestError,
    ShuttingDownError,
    TransferError,
)
from chiasm.observability.receipt import Attempt
from chiasm.routing.clock import Clock
from chiasm.routing.quarantine import Case
from chiasm.settings import RoutingSettings

MAX_GENERATE_ATTEMPTS = 2
"""A request that two workers failed may be what fails them."""


class StageError(Exception):
    """One stage failed on one worker. `pictures` are the identities and positions it was about."""

    def __init__(self, stage: str, worker: str, error: ChiasmError, pictures: Mapping[str, int]) -> None:
        super().__init__(error.message)
        self.stage = stage
        self.worker = worker
        self.error = error
        self.pictures = pictures


class Ladder:
    """What one request has met, and what that leaves it.

    Attributes:
        attempts: Every try that ended, for the receipt.
        failed: Workers not to be asked for prefill or decode again.
        failed_encoders: Workers not to be asked for embeddings again.
        local_only: Identities of pictures that no encoder is to be asked for again.
    """

    def __init__(self, settings: RoutingSettings, clock: Clock, timeout_s: float, case: Case | None = None) -> None:
        """Take what is left of the request's time and, where deaths are counted, what it may be suspected of."""
        self._settings = settings
        self._case = case
        self._wait_until_s: float | None = None
        self._clock = clock
        self._deadline_s = clock.now_s() + timeout_s
        self._tries: Counter[str] = Counter()
        self._num_failed = 0
        self._last: ChiasmError | None = None
        self.attempts: list[Attempt] = []
        self.failed: set[str] = set()
        self.failed_encoders: set[str] = set()
        self.local_only: set[str] = set()

    @property
    def remaining_s(self) -> float:
        """What is left of the request's time; more than nothing, or raises as `check_time` does."""
        self.check_time()
        return self._deadline_s - self._clock.now_s()

    @property
    def has_failures(self) -> bool:
        """Whether anything went wrong yet."""
        return any(attempt.outcome != "ok" for attempt in self.attempts)

    def check_time(self) -> None:
        """Raise what went wrong last, or else `DeadlineExceededError`, when the request's time is over."""
        if self._clock.now_s() >= self._deadline_s:
            raise self._last or DeadlineExceededError("The request's deadline passed")

    def share_s(self, num_others: int) -> float:
        """Time for a try that `num_others` could follow."""
        return self.remaining_s / (num_others + 1)

    def others_for_encode(self, pictures: Collection[str], num_encoders: int) -> int:
        """How many steps could follow when an encoder fails now; the generation itself is always one."""
        tries = max((self._tries[identity] for identity in pictures), default=0)
        more = min(self._settings.max_encode_attempts - tries, num_encoders) - 1
        return max(more, 0) + 1

    def others_for_generate(self, num_workers: int) -> int:
        """How many workers could be tried after the one that is tried now, of so many that are up."""
        return max(min(MAX_GENERATE_ATTEMPTS - self._num_failed, num_workers) - 1, 0)

    def passed(self, stage: str, worker: str, items: Collection[int] = ()) -> None:
        """Note a try that went well."""
        self.attempts.append(Attempt(stage=stage, worker=worker, outcome="ok", items=tuple(sorted(items))))

    def noted(self, failure: StageError) -> None:
        """Note a failure that is not this request's to act on."""
        items = tuple(sorted(failure.pictures.values()))
        self.attempts.append(
            Attempt(stage=failure.stage, worker=failure.worker, outcome=failure.error.code, items=items)
        )
        if self._case is not None and isinstance(failure.error, EngineDeadError):
            self._case.died(failure.worker, failure.pictures if failure.stage == "encode" else ())

    def encode_failed(self, failure: StageError) -> None:
        """Step down for some pictures. Raises the failure's error where there is no step left."""
        self.noted(failure)
        self._end_if_final(failure.error)
        self.failed_encoders.add(failure.worker)
        self._count_tries(failure.pictures)

    def embedding_failed(self, failure: StageError, producers: Collection[str]) -> None:
        """A consumer could not use embeddings: never these again, nor, for this request, those who made them."""
        self.noted(failure)
        self._end_if_final(failure.error)
        self.failed_encoders.update(producers)
        self._count_tries(failure.pictures)

    def generate_failed(self, failure: StageError) -> None:
        """Step down to another worker. Raises the failure's error where there is no step left."""
        self.noted(failure)
        self._num_failed += 1
        self._end_if_final(failure.error)
        if self._num_failed >= MAX_GENERATE_ATTEMPTS:
            raise failure.error
        if self._case is not None:
            self._case.check()
        self.failed.add(failure.worker)

    def nobody_left(self, planning: ChiasmError) -> None:
        """No plan can be made. Lets workers that only stumbled try again, or raises what to tell the caller."""
        if self.failed and isinstance(self._last, TransferError | EngineStepError):
            self.failed.clear()
            return
        is_lost = isinstance(planning, HandleExpiredError) and isinstance(self._last, HandleExpiredError)
        if is_lost and self.failed_encoders and not self.local_only:
            self.failed_encoders.clear()  # they made it; that it was gone when it was wanted says little about them
            return
        is_exhausted = isinstance(planning, HandleExpiredError) and not isinstance(self._last, OverloadedError)
        if self._last is None:
            raise planning
        if is_exhausted:
            raise HandleExpiredError(
                f"No encoder delivered: {self._last.message}", hint=self._last.hint or planning.hint
            )
        raise self._last

    @property
    def wait_until_s(self) -> float:
        """Until when the request may wait for workers that are down; past when that would not help.

        It helps when nobody was there, or who was there has died or left. What failed otherwise would fail again.
        """
        can_help = self._last is None or isinstance(self._last, EngineDeadError | ShuttingDownError)
        if not can_help or self.local_only:
            return self._clock.now_s()
        if self._wait_until_s is None:
            self._wait_until_s = min(self._deadline_s, self._clock.now_s() + self._settings.wait_for_worker_s)
        return self._wait_until_s

    def came_back(self, worker: str) -> None:
        """A worker is ready again: it may be asked again."""
        self.failed.discard(worker)
        self.failed_encoders.discard(worker)

    def _count_tries(self, pictures: Collection[str]) -> None:
        for identity in pictures:
            self._tries[identity] += 1
            if self._tries[identity] >= self._settings.max_encode_attempts:
                self.local_only.add(identity)

    def _end_if_final(self, error: ChiasmError) -> None:
        if isinstance(error, RequestError | RequestCancelledError):
            raise error
        self._last = error
        if self._deadline_s <= self._clock.now_s():
            raise error
