"""Load what transformers serves: the tiny vision-language model or a text model."""

from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText


def load(directory: str, dtype: str, threads: int) -> Any:
    """The model in evaluation mode."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    config = AutoConfig.from_pretrained(directory)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    return kind.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()


def versions() -> dict[str, str]:
    """Of the libraries that compute."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}
