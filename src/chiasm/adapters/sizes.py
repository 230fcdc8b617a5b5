"""Which projections of a text model may be adapted, and their sizes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from chiasm.errors import AdapterError

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """The model that adapters are for.

    Attributes:
        names: Under which an adapter's configuration may name it, in lower case.
        attention: Width of all query heads.
        key_value: Width of all key heads.
    """

    names: frozenset[str]
    num_layers: int
    hidden: int
    attention: int
    key_value: int
    intermediate: int

    def shape_of(self, target: str) -> tuple[int, int]:
        """Outputs and inputs of one of `TARGETS`."""
        return {
            "q_proj": (self.attention, self.hidden),
            "k_proj": (self.key_value, self.hidden),
            "v_proj": (self.key_value, self.hidden),
            "o_proj": (self.hidden, self.attention),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }[target]


def base_model(config: Mapping[str, Any], names: Collection[str]) -> BaseModel:
    """From a model's `config.json`. Raises `AdapterError` where that does not say all sizes."""
    text = config.get("text_config") or config
    try:
        heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
        head_dim = int(text.get("head_dim") or hidden // heads)
        return BaseModel(
            names=last_parts(names),
            num_layers=int(text["num_hidden_layers"]),
            hidden=hidden,
            attention=heads * head_dim,
            key_value=int(text.get("num_key_value_heads") or heads) * head_dim,
            intermediate=int(text["intermediate_size"]),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise AdapterError(f"The model's config.json does not say what an adapter must fit: {error!r}") from error


def last_parts(names: Collection[str]) -> frozenset[str]:
    """Names without what stands before the last slash, in lower case: 'Qwen/Qwen3-8B' and './qwen3-8b' are alike."""
    return frozenset(part.lower() for name in names if (part := name.rstrip("/").rpartition("/")[2]))
