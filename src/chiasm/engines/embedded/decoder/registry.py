"""Which decoder a model gets."""

import logging
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chiasm.engines.embedded.decoder.base import Decoder
from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.errors import EngineStartError
from chiasm.media.kernels.registry import BUILD_HINT

logger = logging.getLogger(__name__)


def make_decoder(
    model: LoadedModel,
    frequency_axes: NDArray[np.int64] | None,
    *,
    kind: Literal["auto", "native", "torch"],
    pack_weights: bool,
    threads: int,
) -> Decoder:
    """Arrange the weights for computing; the text model's layers are not needed afterwards.

    Args:
        model: Loaded weights.
        frequency_axes: `Family.frequency_axes`.
        kind: "auto" takes the C decoder where it can be used.
        pack_weights: Reorder weights for oneDNN, in the torch decoder.
        threads: Of the C decoder; torch has its own setting.

    Raises:
        EngineStartError: "native" was asked for and cannot be used.
    """
    from chiasm.engines.embedded.decoder.native_decoder import NativeDecoder, native_problem
    from chiasm.engines.embedded.decoder.torch_decoder import TorchDecoder

    problem = native_problem(model)
    if kind != "torch" and problem is None:
        return NativeDecoder(model, frequency_axes, threads=threads)
    if kind == "native":
        raise EngineStartError(
            f"The native decoder cannot be used: {problem}", hint=f"{BUILD_HINT}; or set engine.decoder to auto"
        )
    logger.info("Decoding with torch%s", "" if kind == "torch" else f": the native decoder cannot be used, {problem}")
    return TorchDecoder(model, frequency_axes, pack=pack_weights)
