"""The head of a joint model of aspects: what a review says about one and where, in one pass over the pair.

BERT with two heads. `span` finds tokens: outside, beginning, inside. `polarity` judges the pair by its first token. A
token's logit for 'B-x' is the sum of both. What comes out is a token classifier's, so that the processor 'absa' works
unchanged. `config.json` names the architecture and the labels 'O', 'B-x', 'I-x', 'B-y', 'I-y', ...
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from chiasm.engines.pooling.packing import packed
from chiasm.errors import EngineStartError

ARCHITECTURE = "AspectSentimentForTokenClassification"
_NUM_SPANS = 3


class AspectSentimentHead(nn.Module):
    """Logits of one pair at a time, so that nothing depends on what else is in a batch."""

    def __init__(self, width: int, labels: Sequence[str], dtype: torch.dtype) -> None:
        """Make empty layers. Raises `EngineStartError` for labels of another model."""
        super().__init__()
        self.span = nn.Linear(width, _NUM_SPANS, dtype=dtype)
        self.polarity = nn.Linear(width, _num_polarities(labels), dtype=dtype)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[tokens, width] of a whole pair -> [tokens, labels]."""
        spans, polarities = self.span(states), self.polarity(states[0])
        inside = spans[:, None, 1:] + polarities[None, :, None]
        return torch.cat((spans[:, :1], inside.flatten(1)), dim=1)


def load_aspect_head(directory: Path, width: int, labels: Sequence[str]) -> nn.Module:
    """Read the head, which computes in float32. Raises `EngineStartError`."""
    head = AspectSentimentHead(width, labels, torch.float32)
    try:
        with safe_open(directory / "model.safetensors", "pt") as file:
            head.load_state_dict({name: file.get_tensor(name) for name in head.state_dict()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise EngineStartError(
            f"Cannot load the head of {directory.name}: {error}",
            hint="model.safetensors has span.* [3, hidden_size] and polarity.* [polarities, hidden_size]",
        ) from error
    return packed(head.eval().requires_grad_(requires_grad=False), torch.float32)


def _num_polarities(labels: Sequence[str]) -> int:
    kinds = [label[2:] for label in labels[1::2]]
    expected = ["O", *(f"{begin}-{kind}" for kind in kinds for begin in "BI")]
    if len(labels) < _NUM_SPANS or list(labels) != expected:
        raise EngineStartError(
            f"{ARCHITECTURE} does not fit the labels {', '.join(labels[:9])}",
            hint="config.json has id2label in the order 'O', 'B-x', 'I-x', 'B-y', 'I-y', ...",
        )
    return len(kinds)
