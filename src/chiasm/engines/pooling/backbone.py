"""Which code computes a text model's layers, or those of an image tower."""

import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch

from chiasm.engines.pooling.native_text import NativeTextEncoder, text_problem
from chiasm.engines.pooling.native_vision import NativeLayers, vision_problem
from chiasm.engines.pooling.packing import packed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Computing:
    """How a model is to be computed.

    Attributes:
        dtype: Of the weights.
        threads: Of the C code; torch has its own setting.
        kind: `engine.decoder`. "native" means the C code where there is any: it asks for more only of decoders.
    """

    dtype: torch.dtype
    threads: int = 1
    kind: Literal["auto", "native", "torch"] = "auto"


def arranged(backbone: Any, computing: Computing, first_position: int) -> Any:
    """The C encoder with a model's weights where it can be used, else the model itself with its weights packed."""
    problem = "torch was asked for" if computing.kind == "torch" else text_problem(backbone, computing.dtype)
    if problem is None:
        return NativeTextEncoder(backbone, threads=computing.threads, first_position=first_position)
    logger.info("Reading texts with torch: the native encoder is not used, %s", problem)
    return packed(backbone, computing.dtype)


def arranged_tower(vision: Any, computing: Computing, *, only_first: bool = False) -> Any:
    """Give an image tower of transformers its layers in C where they can be used; else leave it as it is.

    `only_first` says that the tower's pooler looks at nothing but the first row.
    """
    problem = "torch was asked for" if computing.kind == "torch" else vision_problem(vision, computing.dtype)
    if problem is None:
        vision.encoder = NativeLayers(vision, threads=computing.threads, only_first=only_first)
    else:
        logger.info("Looking at pictures with torch: the native layers are not used, %s", problem)
    return vision
