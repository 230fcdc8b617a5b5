"""The image ranker's own layers: tokens of a text look at the patches of a picture (`chiasm.pooling.ranker_config`)."""

import torch
from torch import nn
from torch.nn import functional

from chiasm.pooling.ranker_config import AdapterConfig


class CrossModalLayer(nn.Module):
    """Attention from tokens to patches, then a feed-forward part; both on normalised input, added to what came in."""

    def __init__(self, config: AdapterConfig, width: int) -> None:
        super().__init__()
        self._num_heads = config.num_attention_heads
        self.attention_norm = nn.LayerNorm(width, config.layer_norm_eps)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, config.layer_norm_eps)
        self.up = nn.Linear(width, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, width)

    def forward(self, tokens: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        """[pairs, tokens, width], [pairs, patches, width] -> as `tokens`."""
        query = self._heads(self.query(self.attention_norm(tokens)))
        key, value = self._heads(self.key(patches)), self._heads(self.value(patches))
        seen = functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.out(seen.transpose(1, 2).flatten(2))
        out: torch.Tensor = tokens + self.down(functional.gelu(self.up(self.mlp_norm(tokens))))
        return out

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(*rows.shape[:-1], self._num_heads, -1).transpose(1, 2)


class FeatureProjection(nn.Module):
    """A picture's patches in the text's width: what is kept of a picture."""

    def __init__(self, vision_width: int, width: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(vision_width, eps)
        self.dense = nn.Linear(vision_width, width)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[..., vision width] -> [..., width]."""
        out: torch.Tensor = self.dense(self.norm(patches))
        return out


class CrossModalAdapter(nn.Module):
    """Layers, a last norm, the mean over the text's tokens, one logit."""

    def __init__(self, config: AdapterConfig, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CrossModalLayer(config, width) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(width, config.layer_norm_eps)
        self.score = nn.Linear(width, 1)

    def forward(self, tokens: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        """[pairs, tokens, width] without padding, [pairs, patches, width] -> logits [pairs, 1]."""
        for layer in self.layers:
            tokens = layer(tokens, patches)
        out: torch.Tensor = self.score(self.norm(tokens).mean(1))
        return out
