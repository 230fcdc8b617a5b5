"""The joint model of aspects (`chiasm.engines.pooling.aspect_sentiment`) as vLLM loads and batches it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.pooler.tokwise import TokenPooler
from vllm.model_executor.layers.pooler.tokwise.heads import TokenPoolerHead
from vllm.model_executor.layers.pooler.tokwise.methods import get_tok_pooling_method
from vllm.model_executor.models.bert import BertEmbedding, BertModel, _encode_token_type_ids
from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix

from chiasm.engines.pooling.aspect_sentiment import AspectSentimentHead

_PLACES = WeightsMapper(orig_to_new_prefix={"span.": "head.span.", "polarity.": "head.polarity.", "bert.pooler.": None})


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class AspectSentimentModel(nn.Module):
    """What vLLM finds by the architecture's name in `config.json`."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        """Make empty layers. Raises `EngineStartError` for labels of another model."""
        super().__init__()
        served = vllm_config.model_config
        config = served.hf_config
        self.bert = BertModel(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "bert"), embedding_class=BertEmbedding
        )
        labels = [config.id2label[index] for index in range(config.num_labels)]
        self.head = AspectSentimentHead(config.hidden_size, labels, served.head_dtype)
        pooling = get_tok_pooling_method(served.pooler_config.get_tok_pooling_type())
        self.pooler = TokenPooler(pooling, _PairHead(self.head, served.head_dtype))

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
        return AutoWeightsLoader(self).load_weights(weights, mapper=_PLACES)


class _PairHead(TokenPoolerHead):  # type: ignore[misc]
    """vLLM's form of the head: the hidden states of one pair at a time."""

    def __init__(self, head: AspectSentimentHead, dtype: torch.dtype) -> None:
        super().__init__()
        self._head, self._dtype = head, dtype

    def get_supported_tasks(self) -> set[str]:
        return {"token_classify"}

    def forward_chunk(self, pooled_data: torch.Tensor | None, pooling_param: Any) -> torch.Tensor | None:
        if pooled_data is None:  # the pair is not whole yet
            return None
        logits: torch.Tensor = self._head(pooled_data.to(self._dtype))
        return logits.softmax(-1) if pooling_param.use_activation else logits
