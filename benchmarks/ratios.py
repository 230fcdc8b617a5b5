"""Ratios of rounds: measurements of one round share the machine's mood, so they are divided before anything else."""

import random
import statistics
from collections.abc import Sequence

NUM_RESAMPLES = 2000


def median_ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Median over rounds of ours / theirs, with a 95 % bootstrap interval of that median."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(NUM_RESAMPLES))
    return {
        "median": statistics.median(ratios),
        "low": medians[int(0.025 * NUM_RESAMPLES)],
        "high": medians[int(0.975 * NUM_RESAMPLES) - 1],
        "rounds": len(ratios),
    }
