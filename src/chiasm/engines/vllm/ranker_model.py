"""The image ranker (`chiasm.pooling.ranker_config`) as vLLM loads and batches it.

vLLM computes the text encoder and keeps pictures' features in its encoder cache, by content; tower, projection and
adapter are the embedded engine's modules. Features never enter the sequence: they wait, for the step that was given
them, until the pooler lets each text look at its own.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.model_executor.models.bert import BertEmbedding, BertModel, _encode_token_type_ids
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type
from vllm.model_executor.models.roberta import RobertaEmbedding
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY

from chiasm.engines.pooling.ranker import CrossModalAdapter, FeatureProjection
from chiasm.engines.vllm.ranker_pictures import RankerDummyPictures, RankerPictureInfo, RankerPictureProcessor
from chiasm.errors import EngineStartError
from chiasm.pooling.ranker_config import read_ranker_config

_EMBEDDINGS = {"bert": BertEmbedding, "roberta": RobertaEmbedding, "xlm-roberta": RobertaEmbedding}
_UNUSED = WeightsMapper(orig_to_new_prefix={"text_model.pooler.": None})


class PicturesOfStep:
    """Features of the pictures in the step that is being computed, by where their tokens stand in it."""

    def __init__(self) -> None:
        self._features: dict[int, torch.Tensor] = {}

    def note(self, places: Sequence[int], features: Sequence[torch.Tensor]) -> None:
        """Begin a step. Raises `ValueError` for another number of features than of places."""
        self._features = dict(zip(places, features, strict=True))

    def take(self, lengths: Sequence[int]) -> list[torch.Tensor | None]:
        """What each sequence of the step has, by their lengths, and end the step."""
        found: list[torch.Tensor | None] = []
        begin = 0
        for length in lengths:
            own = [feature for place, feature in self._features.items() if begin <= place < begin + length]
            found.append(own[0] if own else None)
            begin += length
        self._features = {}
        return found


class AdapterPooler(Pooler):  # type: ignore[misc]
    """One logit for each sequence, NaN for one without a picture: vLLM's own paths can send such."""

    def __init__(self, adapter: CrossModalAdapter, pictures: PicturesOfStep, shape: tuple[int, int]) -> None:
        super().__init__()
        self._adapter, self._pictures, self._shape = adapter, pictures, shape

    def get_supported_tasks(self) -> set[str]:
        """See vLLM."""
        return {"classify"}

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> list[torch.Tensor]:
        """[tokens, width] of the whole step without what it is filled up with -> [1] each."""
        lengths = pooling_metadata.get_pooling_cursor().num_scheduled_tokens_cpu.tolist()
        texts = torch.split(hidden_states, lengths)
        pictures = self._pictures.take(lengths)
        nothing = torch.full((1,), torch.nan, device=hidden_states.device)
        logits = [nothing] * len(lengths)
        order = sorted((index for index, one in enumerate(pictures) if one is not None), key=lengths.__getitem__)
        for _, group in groupby(order, key=lengths.__getitem__):
            pairs = list(group)
            tokens = torch.stack([texts[index] for index in pairs]).float()
            patches = torch.stack([pictures[index].view(self._shape) for index in pairs])
            for index, logit in zip(pairs, self._adapter(tokens, patches), strict=True):
                logits[index] = logit
        return logits


@MULTIMODAL_REGISTRY.register_processor(
    RankerPictureProcessor, info=RankerPictureInfo, dummy_inputs=RankerDummyPictures
)
@attn_type("encoder_only")
@default_pooling_type(seq_pooling_type="MEAN")
class ImageRankerModel(nn.Module, SupportsMultiModal):  # type: ignore[misc]
    """What vLLM finds by the model type or the architecture's name in `config.json`."""

    is_pooling_model = True
    requires_raw_input_tokens = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        """Make empty layers. Raises `EngineStartError` for sizes and parts that do not go together."""
        super().__init__()
        served = vllm_config.model_config
        config = read_ranker_config(Path(served.model))
        text, vision = served.hf_config.text_config, served.hf_config.vision_config
        if text.model_type not in _EMBEDDINGS:
            raise EngineStartError(
                f"Inside vLLM no image ranker has a {text.model_type} for its text", hint="Serve it with chiasm serve"
            )
        self.text_model = BertModel(
            vllm_config=vllm_config.with_hf_config(text),
            prefix=maybe_prefix(prefix, "text_model"),
            embedding_class=_EMBEDDINGS[text.model_type],
        )
        kind: Any = AutoModel
        self.vision_model: Any = kind.from_config(vision, attn_implementation="sdpa").to(served.dtype)
        self.feature_projection = FeatureProjection(
            vision.hidden_size, text.hidden_size, config.adapter_config.layer_norm_eps
        ).float()
        self.adapter = CrossModalAdapter(config.adapter_config, text.hidden_size).float()
        self._pictures = PicturesOfStep()
        shape = (int(self.vision_model.embeddings.num_positions), int(text.hidden_size))
        self.pooler = AdapterPooler(self.adapter, self._pictures, shape)

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """See vLLM: no prompt of its own paths has a place for a picture."""
        del modality, i
        return None

    def get_language_model(self) -> nn.Module:
        """See vLLM."""
        model: nn.Module = self.text_model
        return model

    def embed_multimodal(self, pixel_values: torch.Tensor, **_: Any) -> torch.Tensor:
        """Pictures [pictures, 3, size, size] -> [pictures, 1, patches * width]: all of a picture behind one token."""
        weight = self.vision_model.embeddings.patch_embedding.weight
        patches = self.vision_model(pixel_values=pixel_values.to(weight.dtype)).last_hidden_state
        features: torch.Tensor = self.feature_projection(patches.float())
        return features.flatten(1)[:, None]

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Word embeddings alone, the marker's among them; features are put aside for the step's pooler."""
        features = list(multimodal_embeddings or ())
        places = [] if is_multimodal is None else is_multimodal.nonzero()[:, 0].tolist()
        self._pictures.note(places, features)
        embedded: torch.Tensor = self.text_model.embed_input_ids(input_ids)
        return embedded

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [tokens, width] of everything in the batch, end to end; ids say all that embeddings do."""
        if token_type_ids is not None:
            _encode_token_type_ids(input_ids, token_type_ids)
        states: torch.Tensor = self.text_model(
            input_ids=input_ids, positions=positions, intermediate_tensors=intermediate_tensors
        )
        return states

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """Take the tensors under the names that the embedded engine's module has."""
        return AutoWeightsLoader(self).load_weights(weights, mapper=_UNUSED)
