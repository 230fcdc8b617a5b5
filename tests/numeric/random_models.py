"""Small models with random weights: real directories that both transformers and Chiasm load.

Weights are scaled up, layers more than embeddings, so that greedy answers vary with the prompt and the picture instead
of repeating one token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedTokenizerFast

from chiasm.media.prepare.base import PreparedImage

VOCAB_SIZE = 384
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_TOKENS = (*CHATML, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
LLAVA_TOKENS = (*CHATML, "<image>", "<video>")
BORDER_TOKENS = (*CHATML, "<image>", "<fake_token_around_image>", "<end_of_utterance>")
TILE_TOKENS = (
    *BORDER_TOKENS,
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
CHAT_TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.content is string %}{{ m.content }}"
    "{%- else %}{%- for c in m.content %}"
    "{%- if c.type == 'text' %}{{ c.text }}"
    "{%- elif c.type == 'video' %}{{ 'PLACEHOLDER'.replace('image_pad', 'video_pad') }}"
    "{%- else %}{{ 'PLACEHOLDER' }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
ROPE = {"rope_type": "default", "rope_theta": 1e4}
MROPE = ROPE | {"mrope_section": [4, 2, 2]}
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4096,
    "rope_parameters": ROPE,
    "bos_token_id": None,
    "pad_token_id": 256,
    "eos_token_id": 258,
}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
SIGLIP = TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False}
CLIP = TOWER | {"model_type": "clip_vision_model", "projection_dim": 32}


@dataclass(frozen=True)
class Recipe:
    """How to build one family: `config` and `processor` as in the JSON files, tokens from id 256 on."""

    config: dict[str, Any]
    tokens: tuple[str, ...] = CHATML
    placeholder: str = ""
    processor: dict[str, Any] | None = None
    merges_newlines: bool = False


def _qwen(model_type: str, text: dict[str, Any], vision: dict[str, Any]) -> Recipe:
    names = {name: 256 + number for number, name in enumerate(QWEN_TOKENS)}
    config = {
        "model_type": model_type,
        "text_config": TEXT | {"head_dim": 16, "rope_parameters": MROPE} | text,
        "vision_config": vision,
        "image_token_id": names["<|image_pad|>"],
        "video_token_id": names["<|video_pad|>"],
        "vision_start_token_id": names["<|vision_start|>"],
        "vision_end_token_id": names["<|vision_end|>"],
    }
    size = {"shortest_edge": 32 * 32, "longest_edge": 192 * 192}
    return Recipe(
        config=config,
        tokens=QWEN_TOKENS,
        placeholder="<|vision_start|><|image_pad|><|vision_end|>",
        processor={
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": vision["patch_size"],
            "size": size,
            "image_mean": [0.5, 0.4, 0.3],
            "image_std": [0.5, 0.6, 0.7],
        },
    )


def _idefics3(model_type: str, processor: str, tokens: tuple[str, ...], longest_edge: int) -> Recipe:
    """Idefics3 spells the names of tiles in letters and joins two newlines; SmolVLM has tokens for the names."""
    text = TEXT | {"model_type": "llama"}
    return Recipe(
        config={
            "model_type": model_type,
            "text_config": text,
            "vision_config": TOWER,
            "scale_factor": 2,
            "image_token_id": 256 + TILE_TOKENS.index("<image>"),
            "pad_token_id": 256,
        },
        tokens=tokens,
        placeholder="<image>",
        processor={
            "image_processor_type": processor,
            "size": {"longest_edge": longest_edge},
            "max_image_size": {"longest_edge": 32},
        },
        merges_newlines=tokens is BORDER_TOKENS,
    )


def _llava(text: dict[str, Any], vision: dict[str, Any], processor: dict[str, Any], **more: Any) -> Recipe:
    config = {
        "text_config": TEXT | text,
        "vision_config": vision,
        "image_token_index": 256 + LLAVA_TOKENS.index("<image>"),
    }
    return Recipe(config=config | more, tokens=LLAVA_TOKENS, placeholder="<image>", processor=processor)


PINPOINTS = [[32, 32], [32, 64], [64, 32], [64, 64], [32, 96], [96, 32], [128, 128]]
RECIPES: dict[str, Recipe] = {
    "qwen2_vl": _qwen(
        "qwen2_vl",
        {},
        {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": _qwen(
        "qwen2_5_vl",
        {},
        {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
    ),
    "qwen3_vl": _qwen(
        "qwen3_vl",
        {"rope_parameters": MROPE | {"mrope_interleaved": True}},
        {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
    ),
    "idefics3": _idefics3("idefics3", "Idefics3ImageProcessor", BORDER_TOKENS, 96),
    "smolvlm": _idefics3("smolvlm", "SmolVLMImageProcessor", TILE_TOKENS, 128),
    "llava": _llava(
        {"model_type": "llama"},
        CLIP,
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32},
        },
        model_type="llava",
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    ),
    "llava_siglip": _llava(
        {"model_type": "qwen2"},
        SIGLIP,
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}},
        model_type="llava",
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    ),
    "llava_onevision": _llava(
        {"model_type": "qwen2"},
        SIGLIP,
        {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 32, "width": 32},
            "image_grid_pinpoints": PINPOINTS,
        },
        model_type="llava_onevision",
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-1,
        vision_aspect_ratio="anyres_max_4",
        video_token_index=256 + LLAVA_TOKENS.index("<video>"),
    ),
    "llama": Recipe(
        config=TEXT
        | {
            "model_type": "llama",
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        }
    ),
    "mistral": Recipe(config=TEXT | {"model_type": "mistral", "sliding_window": None, "head_dim": 32}),
    "qwen2": Recipe(config=TEXT | {"model_type": "qwen2", "tie_word_embeddings": True}),
    "qwen3": Recipe(config=TEXT | {"model_type": "qwen3", "head_dim": 32}),
}
PICTURE_FAMILIES = tuple(name for name, recipe in RECIPES.items() if recipe.processor)
TEXT_FAMILIES = tuple(name for name, recipe in RECIPES.items() if not recipe.processor)


def build(family: str, directory: Path, *, seed: int = 0) -> Path:
    """Write a model of `RECIPES` to `directory`: weights, configuration, tokenizer with chat template, processor."""
    recipe = RECIPES[family]
    directory.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model(**recipe.config)
    torch.manual_seed(seed)
    auto = AutoModelForImageTextToText if recipe.processor else AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(3 if "embed_tokens" in name else 8)
    model.generation_config.eos_token_id = TEXT["eos_token_id"]
    model.save_pretrained(directory)
    _tokenizer(recipe).save_pretrained(directory)
    if recipe.processor:
        (directory / "preprocessor_config.json").write_text(json.dumps(recipe.processor), encoding="utf-8")
    return directory


def reference_model(family: str, directory: Path) -> Any:
    """The transformers model of a directory made by `build`, in float32."""
    auto = AutoModelForImageTextToText if RECIPES[family].processor else AutoModelForCausalLM
    return auto.from_pretrained(directory, dtype=torch.float32).eval()


def reference_inputs(family: str, token_ids: Sequence[int], images: Sequence[PreparedImage]) -> dict[str, Any]:
    """Keyword arguments of the transformers model's `forward` and `generate` for one prompt with its pictures."""
    ids = torch.tensor([token_ids])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not images:
        return inputs
    pixels = [torch.from_numpy(image.pixel_values()) for image in images]
    if family.startswith("qwen"):
        image_token = RECIPES[family].config["image_token_id"]
        grids = torch.tensor([image.plan.grid_thw for image in images])
        return inputs | {
            "pixel_values": torch.cat(pixels),
            "image_grid_thw": grids,
            "mm_token_type_ids": (ids == image_token).int(),
        }
    if family in ("idefics3", "smolvlm"):
        return inputs | {"pixel_values": torch.cat(pixels)[None]}
    if family == "llava_onevision":
        sizes = torch.tensor([[image.plan.height, image.plan.width] for image in images])
        return inputs | {"pixel_values": torch.cat(pixels), "image_sizes": sizes}
    return inputs | {"pixel_values": torch.stack(pixels)}


def _tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Bytes as tokens 0-255 (and, if asked for, two newlines as the last token), then the special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(letters)}
    merges = []
    if recipe.merges_newlines:
        vocab["\u010a\u010a"] = VOCAB_SIZE - 1
        merges = [("\u010a", "\u010a")]
    fillers = {f"<unused{number}>": 256 + number for number in range(VOCAB_SIZE - 257)}
    vocab |= fillers | {token: 256 + number for number, token in enumerate(recipe.tokens)}
    taken = set(range(256, 256 + len(recipe.tokens)))
    vocab = {word: number for word, number in vocab.items() if not (word in fillers and number in taken)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\s+|\S+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in recipe.tokens])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE.replace("PLACEHOLDER", recipe.placeholder)
    return fast
