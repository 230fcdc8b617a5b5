"""Reading weights through transformers, the same way for every family."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils import logging

from chiasm.errors import EngineStartError
from chiasm.settings.process import is_refused_by_system


def read_weights(
    model_class: Any, directory: Path, config: Any, dtype: torch.dtype, *, unneeded: str | None = None, **options: Any
) -> Any:
    """Build `model_class` from local files only, in `dtype`, ready for inference.

    Tensors whose names begin with `unneeded` may be missing; `options` go to transformers as they are.

    Raises:
        EngineStartError: No weights, unreadable weights, or weights that do not fill the model.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, report = model_class.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        if is_refused_by_system(error):
            raise
        raise EngineStartError(
            f"cannot load the weights of {directory.name}: {error}", hint="the directory needs *.safetensors files"
        ) from error
    missing = sorted(name for name in report["missing_keys"] if unneeded is None or not name.startswith(unneeded))
    if missing:
        raise EngineStartError(
            f"{len(missing)} tensors are missing from the weights of {directory.name}, the first is {missing[0]}",
            hint="download the model again",
        )
    return model.eval().requires_grad_(False)
