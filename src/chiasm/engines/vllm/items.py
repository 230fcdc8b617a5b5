"""What vLLM's requests say about their media, in this package's words."""

from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver, collect_ec_item_metadata
from vllm.multimodal import MULTIMODAL_REGISTRY

from chiasm.engines.vllm.ec.announcement import Wanted
from chiasm.errors import LayoutMismatchError

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.multimodal.inputs import MultiModalFeatureSpec


class ItemReader:
    """Knows which fields of a model's media size their placeholders, and which are embeddings themselves."""

    def __init__(self, model_config: "ModelConfig") -> None:
        self._resolver = PlaceholderMetadataResolver(model_config)
        self._fields = MULTIMODAL_REGISTRY.create_processor(model_config).info.data_parser.embedding_fields

    def entries(self, features: "list[MultiModalFeatureSpec]") -> dict[str, dict[str, Any]]:
        """A producer's `ec_transfer_params`, as vLLM's own connectors begin them."""
        entries: dict[str, dict[str, Any]] = collect_ec_item_metadata(features, self._resolver)
        return entries

    def wanted(self, feature: "MultiModalFeatureSpec") -> Wanted:
        """An item as its consumer sees it.

        Raises:
            LayoutMismatchError: The request brings the embedding itself, which nobody has checked.
        """
        position, data = feature.mm_position, feature.data
        names = self._resolver.fields_for(feature.modality)
        present = {} if data is None else {name: field.data for name, field in data.items() if field.data is not None}
        if any(present.get(name) is not None for name, role in self._roles(feature) if role == "values"):
            raise LayoutMismatchError("Embeddings inside a request are not taken")
        return Wanted(
            identity=feature.identifier,
            num_rows=position.get_num_embeds(),
            end=position.offset + position.length,
            metadata=None if data is None else {k: _plain(v) for k, v in present.items() if k in names},
            has_media=any(name not in names for name in present),
        )

    def _roles(self, feature: "MultiModalFeatureSpec") -> list[tuple[str, str]]:
        return list(self._fields.get(feature.modality, {}).items())


def _plain(value: object) -> object:
    return torch.atleast_1d(value).tolist() if isinstance(value, torch.Tensor) else value  # type: ignore[no-untyped-call]
