"""What work takes of the cores that a server's processes share with each other and with their client.

CPU seconds are counted over all of them: gateway, workers and this client, which asks as clients do. Where answers run
on two workers at once, their steps are set against the same steps alone.
"""

from dataclasses import dataclass

import msgspec

from chiasm.advisor.profile.fitting import Fit, Point, fitted, middle_mean
from chiasm.advisor.profile.processes import Processes, num_cores
from chiasm.observability.receipt import Receipt
from chiasm.simulator.calibration import Calibration, Cost, Sharing

_MAX_CONTENTION = 1.0
_LEAST_BUSY = 0.25
"""Of the cores besides the first, in use while workers run beside each other: with less of it nothing is to be told."""


def worker_of(receipt: Receipt) -> str:
    """The worker that generated; empty where there is only one, in the server's own process."""
    passed = [] if receipt.route is None else receipt.route.attempts
    return next((one.worker for one in reversed(passed) if one.outcome == "ok" and one.stage != "encode"), "")


@dataclass(frozen=True, kw_only=True)
class Marginal:
    """One more step of each of some workers at once: answers that run on each, their context, seconds, CPU seconds."""

    workers: frozenset[str]
    running: int
    context: float
    seconds: float
    cpu_s: float


class CoreUse:
    """Collects CPU seconds by what they were for. Does nothing where the server's processes are not to be seen."""

    def __init__(self, processes: Processes | None) -> None:
        self._processes = processes
        self._workers: set[str] = set()
        self._texts: list[Point] = []  # seconds of the prompt, CPU seconds
        self._pictures: list[tuple[float, float, float]] = []  # of media and encoding, of the prompt, CPU seconds
        self._steps: list[Marginal] = []

    def cpu_s(self) -> float:
        """Used so far; 0 where it is not to be seen."""
        return 0.0 if self._processes is None else self._processes.cpu_s()

    def text(self, prefill_s: float, cpu_s: float) -> None:
        """A question of one token took this much."""
        self._texts.append((prefill_s, cpu_s))

    def picture(self, work_s: float, prefill_s: float, cpu_s: float) -> None:
        """A question about a picture did."""
        self._pictures.append((work_s, prefill_s, cpu_s))

    def step(self, one: Marginal) -> None:
        """A step took this much."""
        self._workers |= one.workers - {""}
        self._steps.append(one)

    @property
    def contention(self) -> tuple[float, ...]:
        """What steps took longer on several workers at once than sharing the cores explains, by run; may be none.

        The same steps alone have some of it in them already, as far as they keep more than one core busy.
        """
        single = [one for one in self._steps if one.running == 1]
        alone = [one for one in single if len(one.workers) == 1]
        if not alone or not self._is_seen:
            return ()
        alone_s, cpu_s = middle_mean(one.seconds for one in alone), middle_mean(one.cpu_s for one in alone)
        plain, one_busy = Sharing(num_cores=num_cores()), cpu_s / alone_s
        found = []
        for one in single:
            cores = len(one.workers) * one_busy
            slower = one.seconds / alone_s * plain.slowdown_at(one_busy) / plain.slowdown_at(cores)
            more_busy = plain.busy_share(cores) - slower * plain.busy_share(one_busy)
            if len(one.workers) > 1 and more_busy >= _LEAST_BUSY:
                found.append((slower - 1.0) / more_busy)
        return tuple(found)

    def sharing(self, request_s: float, context_s: float = 0.0) -> Sharing | None:
        """What it comes to; None where nothing was seen.

        Args:
            request_s: How long a request takes besides its stages.
            context_s: Of a step, for each token of context: keeps one core busy, and is no part of `step_cpu`.
        """
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
            step_cpu=self._step_cpu(context_s).cost,
            lone_step_cpu_s=self._lone_step_cpu_s(context_s),
            contention=min(max(middle_mean(contention), 0.0), _MAX_CONTENTION) if contention else 0.0,
        )

    @property
    def fits(self) -> dict[str, Fit]:
        """Of the lines behind it."""
        if not self._is_seen:
            return {}
        return {"CPU of text by prompt": fitted(self._texts), "CPU of a step": self._step_cpu(0.0)}

    @property
    def _is_seen(self) -> bool:
        """Whether enough was asked, and all that worked was counted: workers may run elsewhere, started by others."""
        if self._processes is None or not (self._texts and self._steps):
            return False
        return len(self._workers) <= self._processes.num_started

    def _request_cpu(self) -> Cost:
        return fitted(self._texts).cost if self._texts else Cost()

    def _step_cpu(self, context_s: float) -> Fit:
        """By answers of one worker; where two numbers above one were asked for, a lone one is told apart."""
        several = [one for one in self._steps if one.running > 1]
        steps = several if len({one.running for one in several}) > 1 else self._steps
        return fitted([(one.running, _besides_context_s(one, context_s)) for one in steps])

    def _lone_step_cpu_s(self, context_s: float) -> float | None:
        lone = [_besides_context_s(one, context_s) for one in self._steps if one.running == 1]
        return middle_mean(lone) if lone else None

    def _encode_cores(self, cores: float) -> float:
        if not self._pictures:
            return 1.0
        request = self._request_cpu()
        points = [
            (work_s, max(cpu_s - request.fixed_s - request.per_unit_s * prefill_s, 1e-9))
            for work_s, prefill_s, cpu_s in self._pictures
        ]
        return _within(fitted(points).cost.per_unit_s, cores)


def _besides_context_s(one: Marginal, context_s: float) -> float:
    return max(one.cpu_s - context_s * one.context, 1e-9)


def _within(seen: float, cores: float) -> float:
    """Arithmetic keeps at least half a core busy, and no more than there are: what is seen beyond is noise."""
    return min(max(seen, 0.5), cores)


def with_contention(costs: Calibration, contention: float) -> Calibration:
    """The same costs beside this contention: what each was measured with of it is taken out of them, not counted twice.

    A step keeps its engine, the gateway and the client busy at once, more than one core; prompts and encoding hardly.
    """
    if costs.sharing is None:
        return costs
    sharing = msgspec.structs.replace(costs.sharing, contention=contention)
    of_steps = costs.step_cores(1, costs.step_s(1))

    def tax(cores: float) -> float:
        return 1.0 + contention * sharing.busy_share(cores)

    def less(cost: Cost, cores: float) -> Cost:
        return Cost(fixed_s=cost.fixed_s / tax(cores), per_unit_s=cost.per_unit_s / tax(cores))

    return msgspec.structs.replace(
        costs,
        sharing=sharing.with_step_cpu(lambda cost: less(cost, of_steps)),
        request=less(costs.request, sharing.request),
        step=less(costs.step, of_steps),
        context_s=costs.context_s / tax(of_steps),
        prefill=less(costs.prefill, sharing.prefill),
        prefill_quadratic_s=costs.prefill_quadratic_s / tax(sharing.prefill),
        encode=less(costs.encode, sharing.encode),
        encode_quadratic_s=costs.encode_quadratic_s / tax(sharing.encode),
    )
