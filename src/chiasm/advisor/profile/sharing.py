"""What work takes of the cores that a server's processes share with each other and with their client.

CPU seconds are counted over all of them: gateway, workers and this client, which asks as clients do. Where answers run
on two workers at once, their steps are set against the same steps alone.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from chiasm.advisor.profile.fitting import Fit, Point, fitted
from chiasm.advisor.profile.processes import Processes, num_cores
from chiasm.observability.receipt import Receipt
from chiasm.simulator.calibration import Cost, Sharing

_MAX_CONTENTION = 1.0
_LEAST_BUSY = 0.25
"""Of the cores besides the first, in use while workers run beside each other: with less of it nothing is to be told."""


def worker_of(receipt: Receipt) -> str:
    """The worker that generated; empty where there is only one, in the server's own process."""
    passed = [] if receipt.route is None else receipt.route.attempts
    return next((one.worker for one in reversed(passed) if one.outcome == "ok" and one.stage != "encode"), "")


class CoreUse:
    """Collects CPU seconds by what they were for. Does nothing where the server's processes are not to be seen."""

    def __init__(self, processes: Processes | None) -> None:
        self._processes = processes
        self._workers: set[str] = set()
        self._texts: list[Point] = []  # seconds of the prompt, CPU seconds
        self._pictures: list[tuple[float, float, float]] = []  # of media and encoding, of the prompt, CPU seconds
        self._steps: list[Point] = []  # answers beside each other on one worker, CPU seconds of a step
        self._pairs: list[Point] = []  # one answer on each of so many workers, seconds of a step

    def cpu_s(self) -> float:
        """Used so far; 0 where it is not to be seen."""
        return 0.0 if self._processes is None else self._processes.cpu_s()

    def text(self, prefill_s: float, cpu_s: float) -> None:
        """A question of one token took this much."""
        self._texts.append((prefill_s, cpu_s))

    def picture(self, work_s: float, prefill_s: float, cpu_s: float) -> None:
        """A question about a picture did."""
        self._pictures.append((work_s, prefill_s, cpu_s))

    def answers(self, receipts: Sequence[Receipt], step_s: Sequence[float], cpu_s: float) -> None:
        """Answers beside each other did, in all."""
        counts = Counter(map(worker_of, receipts))
        self._workers |= counts.keys() - {""}
        num_steps = max(median(one.num_output_tokens for one in receipts) - 1, 1)
        each = len(receipts) / len(counts)
        before_s = len(receipts) * (self._request_cpu().fixed_s + self._prefill_cpu_s(receipts) / len(receipts))
        self._steps.append((each, max(cpu_s - before_s, 0.0) / num_steps / len(counts)))
        if each == 1:
            self._pairs.append((len(counts), median(step_s)))

    @property
    def contention(self) -> tuple[float, ...]:
        """What steps took longer on several workers at once than sharing the cores explains, by run; may be none."""
        alone = [seconds for count, seconds in self._pairs if count == 1]
        if not alone or not self._is_seen or median(alone) <= 0:
            return ()
        alone_s, step_cpu = median(alone), fitted(self._steps).cost
        plain = Sharing(num_cores=num_cores())
        found = []
        for count, seconds in self._pairs:
            if count > 1:
                cores = count * step_cpu.at(1) / alone_s
                busy = (min(cores, plain.num_cores) - 1.0) / max(plain.num_cores - 1.0, 1e-9)
                if busy >= _LEAST_BUSY:
                    found.append((seconds / alone_s / plain.slowdown_at(cores) - 1.0) / busy)
        return tuple(found)

    def sharing(self, request_s: float) -> Sharing | None:
        """What it comes to; None where nothing was seen. `request_s` is how long a request takes besides its stages."""
        if self._processes is None or not self._is_seen:
            return None
        request, cores = self._request_cpu(), float(num_cores())
        contention = self.contention
        return Sharing(
            num_cores=cores,
            processes=self._processes.names,
            request=min(request.fixed_s / request_s, cores) if request_s > 0 else 1.0,
            encode=self._encode_cores(cores),
            prefill=_within(request.per_unit_s, cores),
            step_cpu=fitted(self._steps).cost,
            contention=min(max(median(contention), 0.0), _MAX_CONTENTION) if contention else 0.0,
        )

    @property
    def fits(self) -> dict[str, Fit]:
        """Of the lines behind it."""
        if not self._is_seen:
            return {}
        return {"CPU of text by prompt": fitted(self._texts), "CPU of a step": fitted(self._steps)}

    @property
    def _is_seen(self) -> bool:
        """Whether enough was asked, and all that worked was counted: workers may run elsewhere, started by others."""
        if self._processes is None or not (self._texts and self._steps):
            return False
        return len(self._workers) <= self._processes.num_started

    def _request_cpu(self) -> Cost:
        return fitted(self._texts).cost if self._texts else Cost()

    def _prefill_cpu_s(self, receipts: Sequence[Receipt]) -> float:
        """Of prompts as short as the shortest that were asked alone."""
        if not self._texts:
            return 0.0
        return self._request_cpu().per_unit_s * min(seconds for seconds, _ in self._texts) * len(receipts)

    def _encode_cores(self, cores: float) -> float:
        if not self._pictures:
            return 1.0
        request = self._request_cpu()
        points = [
            (work_s, max(cpu_s - request.fixed_s - request.per_unit_s * prefill_s, 1e-9))
            for work_s, prefill_s, cpu_s in self._pictures
        ]
        return _within(fitted(points).cost.per_unit_s, cores)


def _within(seen: float, cores: float) -> float:
    """Arithmetic keeps at least half a core busy, and no more than there are: what is seen beyond is noise."""
    return min(max(seen, 0.5), cores)
