"""The image ranker's architecture as its directory writes it down.

A text encoder reads `query [SEP] <marker> text`, one marker token whatever the picture's size. A vision tower makes of
the picture one row per patch, outside of the sequence, which is why those rows can be kept. Layers of cross-attention
let every token of the text look at the picture; the mean over the tokens becomes one logit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chiasm.errors import EngineStartError

RANKER_TYPE = "chiasm_image_ranker"


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the layers between text and picture; their width is the text encoder's."""

    num_layers: Annotated[int, Meta(ge=1)]
    num_attention_heads: Annotated[int, Meta(ge=1)]
    intermediate_size: Annotated[int, Meta(ge=1)]
    layer_norm_eps: Annotated[float, Meta(gt=0)] = 1e-5


class RankerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`config.json` of an image ranker; text and vision are configurations of transformers."""

    text_config: Mapping[str, Any]
    vision_config: Mapping[str, Any]
    adapter_config: AdapterConfig
    marker_token: Annotated[str, Meta(min_length=1)] = "<image>"  # noqa: S105 - no secret


def read_ranker_config(directory: Path) -> RankerConfig:
    """Read `config.json`. Raises `EngineStartError`."""
    try:
        return msgspec.json.decode((directory / "config.json").read_bytes(), type=RankerConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineStartError(
            f"config.json of {directory.name} is not that of an image ranker: {error}",
            hint="docs/pooling_pictures.md has the architecture's fields",
        ) from error
