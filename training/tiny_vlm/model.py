"""The model, and forward passes that waste nothing: dense vision batches, packed conversations.

Both compute what transformers' own `forward` computes (`check` compares them); they are faster for
training on a CPU because nothing is padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

PATCH, MERGE, FRAMES = 16, 2, 2
CELL = PATCH * MERGE
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen3VLProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 3,
    "merge_size": MERGE,
    "patch_size": PATCH,
    "temporal_patch_size": FRAMES,
    "min_pixels": 64 * 64,
    "max_pixels": 512 * 512,
    "size": {"shortest_edge": 64 * 64, "longest_edge": 512 * 512},
}


def config(token_ids: dict[str, int]) -> Qwen3VLConfig:
    """The architecture; `token_ids` maps the special tokens to their ids."""
    text = {
        "vocab_size": 1024,
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
            "rope_theta": 100000.0,
        },
        "bos_token_id": 0,
        "eos_token_id": token_ids["<|im_end|>"],
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
    }
    vision = {
        "depth": 4,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_heads": 6,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "out_hidden_size": 256,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [1],
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token_ids["<|image_pad|>"],
        video_token_id=token_ids["<|video_pad|>"],
        vision_start_token_id=token_ids["<|vision_start|>"],
        vision_end_token_id=token_ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def load(path: Path | None, token_ids: dict[str, int]) -> Qwen3VLForConditionalGeneration:
    """A checkpoint in fp32, or a fresh model."""
    if path is None:
        return Qwen3VLForConditionalGeneration(config(token_ids)).float()
    return Qwen3VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Vision:
    """The vision tower over a batch of pictures of one size."""

    def __init__(self, tower: nn.Module) -> None:
        self.tower = tower
        self._geometry: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def geometry(self, gh: int, gw: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Interpolated position indices and weights, rotary cosines and sines of a patch grid."""
        if (gh, gw) not in self._geometry:
            t = self.tower
            grid = torch.tensor([[1, gh, gw]])
            index, weight = get_vision_interpolation_indices_and_weights(
                grid,
                num_grid_per_side=t.num_grid_per_side,
                mode=t.interpolation_mode,
                align_corners=t.interpolation_align_corners,
                spatial_merge_size=MERGE,
                kwargs={},
            )
            ids = get_vision_position_ids(grid, MERGE, kwargs={})
            cos, sin = t.rotary_pos_emb(torch.zeros(1), ids)
            self._geometry[gh, gw] = index, weight, cos, sin
        return self._geometry[gh, gw]

    def __call__(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, list[Tensor]]:
        """(B, N, 3*16*16) patches -> merged features (B*N/4, D) and the deepstack levels."""
        t = self.tower
        batch, n, _ = patches.shape
        index, weight, cos, sin = self.geometry(*grid)
        cos, sin = cos[None, None], sin[None, None]
        # Both frames of a still picture are equal, so that the 3-d convolution is one matrix.
        kernel = t.patch_embed.proj.weight.sum(2).flatten(1)
        x = functional.linear(patches, kernel, t.patch_embed.proj.bias)
        x = x + (t.pos_embed(index) * weight[:, :, None]).sum(1)
        levels = []
        for i, block in enumerate(t.blocks):
            heads = block.attn.num_heads
            qkv = block.attn.qkv(block.norm1(x)).view(batch, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.unbind(0)
            mixed = functional.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
            x = x + block.attn.proj(mixed.transpose(1, 2).reshape(batch, n, -1))
            x = x + block.mlp(block.norm2(x))
            if i in t.deepstack_visual_indexes:
                level = t.deepstack_merger_list[list(t.deepstack_visual_indexes).index(i)]
                levels.append(level(x.reshape(batch * n, -1)))
        return t.merger(x.reshape(batch * n, -1)), levels


@dataclass
class Packed:
    """Conversations laid end to end."""

    ids: Tensor  # (T,)
    positions: Tensor  # (3, T)
    lengths: list[int]


def language(
    model: Qwen3VLForConditionalGeneration,
    packed: Packed,
    visual: Tensor | None,
    levels: list[Tensor],
    wanted: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """The last hidden states of the tokens `wanted`, and all hidden states after every layer but the last."""
    lm = model.model.language_model
    cfg = model.config.text_config
    heads, kv_heads, d = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    x = lm.embed_tokens(packed.ids)
    rows = (packed.ids == model.config.image_token_id).nonzero()[:, 0]
    if visual is not None:
        x = x.index_copy(0, rows, visual)
    cos, sin = lm.rotary_emb(x[None], packed.positions[:, None])
    cos, sin = cos[0][:, None], sin[0][:, None]
    states = []
    for i, layer in enumerate(lm.layers):
        a, y = layer.self_attn, layer.input_layernorm(x)
        q = _rotate(a.q_norm(a.q_proj(y).view(-1, heads, d)), cos, sin)
        k = _rotate(a.k_norm(a.k_proj(y).view(-1, kv_heads, d)), cos, sin)
        v = a.v_proj(y).view(-1, kv_heads, d)
        x = x + a.o_proj(_attend(q, k, v, packed.lengths, a.scaling))
        if i + 1 == len(lm.layers):
            x = x[wanted]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        if visual is not None and i < len(levels):
            x = x.index_add(0, rows, levels[i])
        states.append(x)
    return lm.norm(x), states


def _attend(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Causal attention within every conversation of a pack."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    parts = []
    for qs, ks, vs in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        q1, k1, v1 = (t.transpose(0, 1)[None] for t in (qs, ks, vs))
        out = functional.scaled_dot_product_attention(q1, k1, v1, is_causal=True, scale=scale)
        parts.append(out[0].transpose(0, 1).reshape(len(qs), -1))
    return torch.cat(parts)


@torch.no_grad()
def check(model: Qwen3VLForConditionalGeneration, packed: Packed, patches: Tensor, grid: tuple[int, int]) -> float:
    """The largest difference from transformers' own forward, for one conversation with one picture."""
    visual, levels = Vision(model.model.visual)(patches, grid)
    ours, _ = language(model, packed, visual, levels, torch.arange(len(packed.ids)))
    ours = functional.linear(ours, model.lm_head.weight)
    pixels = patches.view(1, -1, 3, 1, PATCH**2).repeat(1, 1, 1, FRAMES, 1).flatten(0, 1).flatten(1)
    ids = packed.ids[None]
    theirs = model(
        input_ids=ids,
        pixel_values=pixels,
        image_grid_thw=torch.tensor([[1, *grid]]),
        mm_token_type_ids=(ids == model.config.image_token_id).int(),
    ).logits[0]
    return float((ours - theirs).abs().max())
