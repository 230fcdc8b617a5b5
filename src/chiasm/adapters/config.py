"""`adapter_config.json`, as PEFT writes it: what of it is understood, and what is refused rather than ignored."""

import math
from typing import Any

import msgspec

from chiasm.adapters.sizes import BaseModel, last_parts
from chiasm.errors import AdapterError


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that change what is computed; those after `init_lora_weights` must be off."""

    peft_type: str
    r: int
    lora_alpha: float
    base_model_name_or_path: str | None = None
    use_rslora: bool = False
    init_lora_weights: bool | str | None = None
    bias: str = "none"
    lora_bias: bool = False
    use_dora: bool = False
    use_qalora: bool = False
    fan_in_fan_out: bool = False
    modules_to_save: Any = None
    rank_pattern: Any = None
    alpha_pattern: Any = None
    layer_replication: Any = None
    trainable_token_indices: Any = None
    target_parameters: Any = None
    alora_invocation_tokens: Any = None
    arrow_config: Any = None
    kasa_config: Any = None
    monteclora_config: Any = None
    use_bdlora: Any = None

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


_UNSUPPORTED = (
    "lora_bias",
    "use_dora",
    "use_qalora",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "use_bdlora",
)
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Ways to begin that take something away from the model's own weights: what is trained fits only what is left."""


def read_config(data: bytes, base: BaseModel, max_rank: int) -> LoraConfig:
    """Check a configuration. Raises `AdapterError`."""
    try:
        config = msgspec.json.decode(data, type=LoraConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AdapterError(f"adapter_config.json cannot be read: {str(error)[:200]}") from error
    if config.peft_type != "LORA":
        raise AdapterError(f"The adapter is of type '{config.peft_type[:40]}'", hint="Only LORA is served")
    if not 1 <= config.r <= max_rank:
        raise AdapterError(f"The adapter's rank is {config.r}", hint=f"adapters.max_rank allows 1 to {max_rank}")
    if not math.isfinite(config.lora_alpha):
        raise AdapterError(f"lora_alpha is {config.lora_alpha}")
    used = ["bias"] if config.bias != "none" else []
    if used := [*used, *(name for name in _UNSUPPORTED if getattr(config, name))]:
        raise AdapterError(
            f"The adapter uses {', '.join(used)}, which is not supported",
            hint="Train it without, or merge it into the model",
        )
    _check_beginning(config)
    _check_base(config.base_model_name_or_path, base)
    return config


def _check_beginning(config: LoraConfig) -> None:
    """PEFT writes `true` for an adapter that it has converted."""
    beginning = config.init_lora_weights
    if isinstance(beginning, str) and beginning.lower().startswith(_CHANGE_THE_BASE):
        raise AdapterError(
            f"The adapter was begun with init_lora_weights '{beginning[:40]}', which changes the model's own weights",
            hint="Save it with PEFT's path_initial_model_for_weight_conversion, which makes an adapter for the model "
            "as it was; one of LoftQ cannot be converted",
        )


def _check_base(name: str | None, base: BaseModel) -> None:
    named = last_parts([name or ""])
    if named and named.isdisjoint(base.names):
        raise AdapterError(
            f"The adapter says that it is for '{next(iter(named))[:100]}'; "
            f"the model here is called {', '.join(sorted(base.names))}",
            hint="If they are the same model, add that name to adapters.base_names",
        )
