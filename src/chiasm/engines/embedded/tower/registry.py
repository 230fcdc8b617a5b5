"""Which vision tower a model gets."""

import logging
from typing import Any, Literal

from chiasm.engines.embedded.tower.pause import Pause
from chiasm.engines.embedded.tower.torch_tower import TorchTower

logger = logging.getLogger(__name__)


def make_tower(
    vision: Any, *, kind: Literal["auto", "native", "torch"], threads: int, pause: Pause | None = None
) -> Any:
    """What `Family.encode` calls from now on: the C tower in place of a `TorchTower` where it can be used.

    What is not a `TorchTower` (other families' vision models, None) is left as it is, also with "native": that asks for
    the decoder, which every family has.

    Args:
        vision: `LoadedModel.vision`.
        kind: `engine.decoder`.
        threads: Of the C tower; torch has its own setting.
        pause: Where the tower gives way, if it can: the C tower.
    """
    from chiasm.engines.embedded.tower.native_tower import NativeTower, tower_problem

    if kind == "torch" or not isinstance(vision, TorchTower):
        return vision
    problem = tower_problem(vision.vision)
    if problem is None:
        return NativeTower(vision.vision, threads=threads, pause=pause)
    logger.info("Encoding pictures with torch: the native tower cannot be used, %s", problem)
    return vision
