"""A model of its own inside vLLM: what a review says about an aspect and where, in one pass over the pair.

BERT with two heads. `span` finds tokens: outside, beginning, inside. `polarity` judges the pair by its first token. A
token's logit for 'B-x' is the sum of both. What comes out is a token classifier's, so that the processor 'absa' works
unchanged. `config.json` names the architecture and the labels 'O', 'B-x', 'I-x', 'B-y', ...
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.pooler.tokwise import TokenPooler
from vllm.model_executor.layers.pooler.tokwise.heads import TokenPoolerHead
from vllm.model_executor.layers.pooler.tokwise.methods import get_tok_pooling_method
from vllm.model_executor.models.bert import BertEmbedding, BertModel, _encode_token_type_ids
from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix

from chiasm.errors import EngineStartError


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class AspectSentimentModel(nn.Module):
    """The architecture that vLLM finds by this name in `config.json`."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        """Make empty layers. Raises `EngineStartError` for labels of another model."""
        super().__init__()
        served = vllm_config.model_config
        config, dtype = served.hf_config, served.head_dtype
        num_polarities = _num_polarities([config.id2label[index] for index in range(config.num_labels)])
        self.bert = BertModel(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "bert"), embedding_class=BertEmbedding
        )
        self.span = nn.Linear(config.hidden_size, 3, dtype=dtype)
        self.polarity = nn.Linear(config.hidden_size, num_polarities, dtype=dtype)
        head = AspectSentimentHead(self.span, self.polarity, dtype)
        self.pooler = TokenPooler(get_tok_pooling_method(served.pooler_config.get_tok_pooling_type()), head)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Word embeddings alone."""
        embedded: torch.Tensor = self.bert.embed_input_ids(input_ids)
        return embedded

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [tokens, hidden_size] of everything in the batch, end to end."""
        if token_type_ids is not None:
            _encode_token_type_ids(input_ids, token_type_ids)
        states: torch.Tensor = self.bert(
            input_ids=input_ids,
            positions=positions,
            inputs_embeds=inputs_embeds,
            intermediate_tensors=intermediate_tensors,
        )
        return states

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """Take 'bert.*' as transformers writes it, 'span.*' and 'polarity.*'."""
        return AutoWeightsLoader(self, ignore_unexpected_prefixes=["bert.pooler."]).load_weights(weights)


class AspectSentimentHead(TokenPoolerHead):  # type: ignore[misc]
    """Logits [tokens, labels] of one pair at a time, so that nothing depends on what else is in the batch."""

    def __init__(self, span: nn.Linear, polarity: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.span, self.polarity, self.dtype = span, polarity, dtype

    def get_supported_tasks(self) -> set[str]:
        """What vLLM may ask for."""
        return {"token_classify"}

    def forward_chunk(self, pooled_data: torch.Tensor | None, pooling_param: Any) -> torch.Tensor | None:
        """All tokens of one pair; None before it is whole."""
        if pooled_data is None:
            return None
        logits = joined(self.span(pooled_data.to(self.dtype)), self.polarity(pooled_data[0].to(self.dtype)))
        return logits.softmax(-1) if pooling_param.use_activation else logits


def joined(spans: torch.Tensor, polarities: torch.Tensor) -> torch.Tensor:
    """[tokens, 3] and [polarities] to [tokens, 1 + 2 x polarities]: 'O', then 'B-x' and 'I-x' of each polarity."""
    inside = spans[:, None, 1:] + polarities[None, :, None]
    return torch.cat((spans[:, :1], inside.flatten(1)), dim=1)


def _num_polarities(labels: list[str]) -> int:
    kinds = [label[2:] for label in labels[1::2]]
    expected = ["O", *(f"{begin}-{kind}" for kind in kinds for begin in "BI")]
    if len(labels) < 3 or labels != expected:
        raise EngineStartError(
            f"AspectSentimentForTokenClassification does not fit the labels {', '.join(labels[:9])}",
            hint="config.json has id2label in the order 'O', 'B-x', 'I-x', 'B-y', 'I-y', ...",
        )
    return len(kinds)
