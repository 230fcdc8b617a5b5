"""Small pooling models with random weights, as directories that transformers and Chiasm both load.

Weights are scaled up so that numbers differ between texts; the vocabulary is bytes.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    CLIPConfig,
    CLIPModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from chiasm.engines.pooling.ranker_loading import ImageRanker
from chiasm.pooling.ranker_config import read_ranker_config

CLASSES = {
    "base": AutoModel,
    "sequence": AutoModelForSequenceClassification,
    "token": AutoModelForTokenClassification,
    "causal": AutoModelForCausalLM,
}
SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "yes", "no")
MARKER = "<image>"
_ENCODER = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512}
SHAPES: dict[str, dict[str, Any]] = {
    "bert": {**_ENCODER, "max_position_embeddings": 256, "type_vocab_size": 2},
    "roberta": {**_ENCODER, "max_position_embeddings": 258, "type_vocab_size": 1, "pad_token_id": 0},
    "xlm-roberta": {**_ENCODER, "max_position_embeddings": 258, "type_vocab_size": 1, "pad_token_id": 0},
    "modernbert": {
        **_ENCODER,
        "max_position_embeddings": 256,
        "local_attention": 16,
        "global_attn_every_n_layers": 2,
        "pad_token_id": 0,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2": _DECODER,
    "qwen3": _DECODER,
}


def build(directory: Path, model_type: str, kind: str = "base", **config: Any) -> Path:
    """Write a model of a type; `kind` is one of `CLASSES`."""
    torch.manual_seed(7)
    settings = AutoConfig.for_model(model_type, vocab_size=256 + len(SPECIAL), **(SHAPES[model_type] | config))
    model = CLASSES[kind].from_config(settings).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "norm" not in name.lower():
                weight.mul_(6.0)
    model.save_pretrained(directory)
    _tokenizer(model_type).save_pretrained(directory)
    return directory


def build_clip(directory: Path) -> Path:
    """Write a dual encoder of texts up to 64 tokens and squares of 32 pixels."""
    torch.manual_seed(7)
    text = {"vocab_size": 256 + len(SPECIAL), "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 4}
    vision = {"image_size": 32, "patch_size": 8}
    settings = CLIPConfig(text_config=text | _ENCODER, vision_config=vision | _ENCODER, projection_dim=24)
    model = CLIPModel(settings).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "norm" not in name.lower():
                weight.mul_(4.0)
    model.save_pretrained(directory)
    _tokenizer("clip").save_pretrained(directory)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32).save_pretrained(directory)
    return directory


def build_siglip(directory: Path) -> Path:
    """Write a dual encoder of texts that are filled up to 24 tokens, and squares of 32 pixels."""
    torch.manual_seed(7)
    text = {"vocab_size": 256 + len(SPECIAL), "max_position_embeddings": 24, "pad_token_id": 0, "projection_size": 32}
    vision = {"image_size": 32, "patch_size": 8}
    settings = SiglipConfig(text_config=text | _ENCODER, vision_config=vision | _ENCODER)
    model = SiglipModel(settings).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "norm" not in name.lower():
                weight.mul_(2.0)
        model.logit_scale.fill_(1.503)
        model.logit_bias.fill_(-0.75)
    model.save_pretrained(directory)
    _tokenizer("siglip").save_pretrained(directory)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(directory)
    return directory


def build_image_ranker(directory: Path, text: str = "bert", vision: str = "clip_vision_model") -> Path:
    """Write an image ranker of texts up to 96 tokens, and squares of 32 pixels."""
    torch.manual_seed(7)
    sizes = SHAPES[text] | {"vocab_size": 256 + len(SPECIAL) + 1, "max_position_embeddings": 96 + 2 * (text != "bert")}
    written = {
        "model_type": "chiasm_image_ranker",
        "marker_token": MARKER,
        "text_config": {"model_type": text, **sizes},
        "vision_config": {"model_type": vision, "image_size": 32, "patch_size": 8, **_ENCODER, "hidden_size": 24},
        "adapter_config": {"num_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    }
    directory.mkdir()
    _write(directory / "config.json", written)
    model = ImageRanker(read_ranker_config(directory)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.dim() > 1 else 0.1) + float("norm" in name.lower()))
    save_file(model.state_dict(), directory / "model.safetensors")
    tokenizer = _tokenizer(text)
    tokenizer.add_special_tokens({"additional_special_tokens": [MARKER]})
    tokenizer.save_pretrained(directory)
    kind = CLIPImageProcessorPil if vision.startswith("clip") else SiglipImageProcessorPil
    kind(size={"height": 32, "width": 32}, crop_size=32).save_pretrained(directory)
    return directory


def as_sentence_transformer(directory: Path, mode: str, *, dense: int | None = None, pools: bool = True) -> Path:
    """Add the files by which sentence-transformers finds pooling, a dense layer and normalisation."""
    modules = [("Transformer", "")]
    if pools:
        modules.append(("Pooling", "1_Pooling"))
        _write(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, f"pooling_mode_{mode}": True})
    if dense is not None:
        modules.append(("Dense", "2_Dense"))
        torch.manual_seed(3)
        weights = {"linear.weight": torch.randn(dense, 32), "linear.bias": torch.randn(dense)}
        activation = "torch.nn.modules.activation.Tanh" if pools else "torch.nn.modules.linear.Identity"
        _write(directory / "2_Dense" / "config.json", {"activation_function": activation})
        save_file(weights, directory / "2_Dense" / "model.safetensors")
    modules.append(("Normalize", "3_Normalize"))
    entries = [{"path": path, "type": f"sentence_transformers.models.{name}"} for name, path in modules]
    _write(directory / "modules.json", entries)
    return directory


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _tokenizer(model_type: str) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *letters]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(SPECIAL[:5]))
    tokenizer.add_tokens(list(SPECIAL[5:]))
    if model_type in ("qwen2", "qwen3"):
        single, pair = "$A </s>", "$A $B </s>"
    elif model_type == "clip":  # transformers reads an end of 2 as that of old configurations: the highest id
        single, pair = "<s> $A <|im_end|>", "<s> $A $B <|im_end|>"
    elif model_type.endswith("roberta"):
        single, pair = "<s> $A </s>", "<s> $A </s> </s> $B </s>"
    else:
        single, pair = "<s> $A </s>", "<s> $A </s> $B:1 </s>:1"
    ids = [("<s>", 1), ("</s>", 2), ("<|im_end|>", 4)]
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if model_type == "bert" else [])]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)
