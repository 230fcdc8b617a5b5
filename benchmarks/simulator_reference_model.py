"""The published fleets as simulations: which costs, fleets and requests stand for a cell of the article's grid."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from chiasm.simulator.calibration import Calibration, Cost, Interference
from chiasm.simulator.cluster import Cluster, aggregated, colocated, disaggregated
from chiasm.simulator.run import Outcome, simulate
from chiasm.simulator.traffic import RequestClass, Traffic

Parameters = Mapping[str, float]
Cell = tuple[int, int, int]
"""Pictures, visual tokens of each, output tokens."""
Vector = npt.NDArray[np.float64]

ENCODERS = 2
"""Beside each engine where they share its device."""
ENGINES = 2
"""For each encoder on a device of its own: four for two are published, and at constant arrivals half is the same."""
PIXELS_PER_TOKEN = 1024
"""As the article's scripts bound pictures by their budget of tokens."""
TOWER_MS = (24.6, 27.3)
PREFILL_MS = (127.8, 210.9)
"""Published stage times of one picture and of ten, of 256 tokens each."""
_FEWER, _MORE = 256, 2560
START = {
    "media_image_ms": 6.0,
    "media_token_ms": 0.01,
    "in_process": 4.0,
    "engine_by_media": 0.1,
    "resident": 0.05,
    "prefill_by_encoder": 0.1,
    "beside": 2.0,
    "apart": 1.5,
    "hop_ms": 50.0,
    "step_ms": 4.0,
    "prompt_ms": 80.0,
}
LOW, HIGH = 1e-4, 1e3
_HALF = 0.05
_LEAST_GAIN = 1e-3
_FINEST = 0.005


def calibration(found: Parameters, topology: str, images: int, generation_ms: float) -> Calibration:
    """Costs of one topology, for requests of so many pictures, which are prepared and encoded as one piece.

    Media work is slower in an engine's process, whether or not its engine computes, and on the cheaper tier. Whole
    engines run the tower within the step that computes the prompt, as the article's engines, vLLM and SGLang, do;
    encoders beside an engine share its device with it (MPS), so that their tower takes longer, however busy the engine
    is: the article's gains in time to first token hardly depend on the length of answers.
    """
    factor = {"aggregated": found["in_process"], "disaggregated": found["apart"]}.get(topology, 1.0)
    tower = _slope(TOWER_MS)
    return Calibration(
        source="fitted to published numbers",
        media=Cost(
            fixed_s=factor * images * found["media_image_ms"] / 1e3,
            per_unit_s=factor * found["media_token_ms"] / PIXELS_PER_TOKEN / 1e3,
        ),
        encode=Cost(fixed_s=TOWER_MS[0] / 1e3 - _FEWER * tower, per_unit_s=tower),
        encoder_factor={"disaggregated": found["apart"], "colocated": found["beside"]}.get(topology, 1.0),
        prefill=Cost(fixed_s=found["prompt_ms"] / 1e3, per_unit_s=_slope(PREFILL_MS)),
        step=Cost(fixed_s=(found["step_ms"] - generation_ms) / 1e3, per_unit_s=generation_ms / 1e3),
        transfer=Cost(fixed_s=found["hop_ms"] / 1e3),
        interference=Interference(
            engine_by_media=found["engine_by_media"],
            resident=found["resident"],
            prefill_by_encoder=found["prefill_by_encoder"],
        ),
        tower_in_step=topology == "aggregated",
        media_threads=1,
        text_waits_for_media=topology == "aggregated",
        max_running=128,
        max_step_tokens=131072,
        max_media_step_s=1e3,
        max_encode_tokens=1 << 20,
        max_encode_s=1e3,
    )


def fleet(topology: str) -> tuple[Cluster, int]:
    """A fleet, and its number of engines. Where engines share nothing, one stands for all."""
    if topology == "disaggregated":
        return disaggregated(1, ENGINES), ENGINES
    return (aggregated(1) if topology == "aggregated" else colocated(1, encoders=ENCODERS)), 1


def request_class(images: int, image_tokens: int, output_tokens: int, **more: Any) -> RequestClass:
    """Requests whose pictures are one piece of media; their text's cost is in the fixed one of a prompt."""
    num_tokens = images * image_tokens
    return RequestClass(
        num_images=1,
        num_pixels=num_tokens * PIXELS_PER_TOKEN,
        visual_tokens=num_tokens,
        text_tokens=1,
        output_tokens=output_tokens,
        **more,
    )


class Model:
    """Predicts cells; remembers them, since several numbers come from one."""

    def __init__(self, found: Parameters, assumptions: Mapping[str, Any], generation_ms: float) -> None:
        self._found = found
        self._assumptions = assumptions
        self._generation_ms = generation_ms
        self._known: dict[tuple[str, Cell], Outcome] = {}

    def ttft_s(self, topology: str, cell: Cell) -> float:
        """Mean time to first token."""
        return float(self._outcome(topology, cell).record.ttft_s.mean())

    def e2el_s(self, topology: str, cell: Cell) -> float:
        """Mean time to the last token."""
        return float(self._outcome(topology, cell).record.e2el_s.mean())

    def value(self, record: Mapping[str, Any]) -> float:
        """What a published record says of its cell, in its unit."""
        cell, topology = cell_of(record), record["topology"]
        mean = self.e2el_s if "e2e" in record["metric"] else self.ttft_s
        if record["unit"] == "pct":
            return 100.0 * (1.0 - mean(topology, cell) / mean("aggregated", cell))
        return mean(topology, cell) * (1e3 if record["unit"] == "ms" else 1.0)

    def _outcome(self, topology: str, cell: Cell) -> Outcome:
        if (topology, cell) not in self._known:
            cluster, engines = fleet(topology)
            traffic = Traffic(
                classes=(request_class(*cell),),
                rate_per_s=engines * self._assumptions["rate_per_device"],
                arrivals=self._assumptions["arrivals"],
                num_requests=engines * self._assumptions["num_requests_per_device"],
            )
            costs = calibration(self._found, topology, cell[0], self._generation_ms)
            self._known[topology, cell] = simulate(cluster, traffic, costs, policy="round_robin")
        return self._known[topology, cell]


def cell_of(record: Mapping[str, Any]) -> Cell:
    """The cell that a record is of."""
    cell = record["cell"]
    return cell["images"], cell["image_tokens"], cell["output_tokens"]


def as_log(record: Mapping[str, Any], value: float) -> float:
    """A latency, or the share of it that a gain leaves, as a logarithm: so errors of all targets are relative ones."""
    return float(np.log(max(1.0 - value / 100.0, 1e-6) if record["unit"] == "pct" else value))


def fit(residuals: Callable[[Parameters], Vector], start: Parameters, rounds: int = 40) -> dict[str, float]:
    """Least squares by Levenberg and Marquardt over the parameters' logarithms, which keeps them positive.

    Rounds end with one that gains less than a thousandth; then each parameter by itself is moved as long as that helps,
    so that no small change of one of them fits better. Slopes are taken over a tenth of each parameter: a first token
    comes at the end of a step, so that over a hundredth they are mostly steps.
    """
    names, at = list(start), np.log(np.array(list(start.values())))
    damping, error = 0.1, residuals(start)
    for _ in range(rounds):
        slopes = np.stack([_slope_of(residuals, names, at, one) for one in range(len(at))], axis=1)
        square, before = slopes.T @ slopes, error @ error
        for _ in range(8):
            step = np.linalg.solve(square + damping * np.eye(len(at)), -slopes.T @ error)
            tried = np.clip(at + np.clip(step, -0.7, 0.7), np.log(LOW), np.log(HIGH))
            found = residuals(_named(names, tried))
            if found @ found < error @ error:
                at, error, damping = tried, found, max(damping / 3, 1e-6)
                break
            damping *= 3
        if error @ error > before * (1 - _LEAST_GAIN):
            break
    return _named(names, _polished(residuals, names, at))


def _polished(residuals: Callable[[Parameters], Vector], names: list[str], at: Vector) -> Vector:
    error = residuals(_named(names, at))
    least, by = float(error @ error), 0.1
    while by >= _FINEST:
        before = least
        for which in range(len(at)):
            for way in (by, -by):
                moved = at.copy()
                moved[which] = np.clip(at[which] + way, np.log(LOW), np.log(HIGH))
                error = residuals(_named(names, moved))
                if error @ error < least:
                    at, least = moved, float(error @ error)
        if least > before * (1 - _LEAST_GAIN):
            by /= 2
    return at


def _slope_of(residuals: Callable[[Parameters], Vector], names: list[str], at: Vector, which: int) -> Vector:
    ahead, behind = (residuals(_moved(names, at, which, by)) for by in (_HALF, -_HALF))
    return (ahead - behind) / (2 * _HALF)


def _moved(names: list[str], at: Vector, which: int, by: float) -> dict[str, float]:
    moved = at.copy()
    moved[which] += by
    return _named(names, moved)


def _named(names: list[str], at: Vector) -> dict[str, float]:
    return dict(zip(names, np.exp(at).tolist(), strict=True))


def _slope(pair: tuple[float, float]) -> float:
    return (pair[1] - pair[0]) / (_MORE - _FEWER) / 1e3
