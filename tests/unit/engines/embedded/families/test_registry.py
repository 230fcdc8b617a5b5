"""Families are found by model type; published configurations are accepted as they are written."""

import json

import pytest

from chiasm.engines.embedded.families.registry import family_for, known_model_types
from chiasm.errors import EngineStartError, UnsupportedModelError

QWEN2_VL = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_act": "silu",
    "hidden_size": 1536,
    "image_token_id": 151655,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "in_chans": 3, "num_heads": 16},
    "vocab_size": 151936,
}
QWEN_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "max_pixels": 12845056,
    "min_pixels": 3136,
    "size": {"max_pixels": 12845056, "min_pixels": 3136},
}
LLAVA = {
    "model_type": "llava",
    "image_token_index": 32000,
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, "num_hidden_layers": 24},
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}
LLAVA_PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "crop_size": {"height": 336, "width": 336},
    "size": {"shortest_edge": 336},
}
LLAMA_3_2 = {
    "model_type": "llama",
    "hidden_size": 2048,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
}


def write(directory, config, processor=None):
    (directory / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    return directory


def test_qwen2_vl_as_published(tmp_path):
    family = family_for(write(tmp_path, QWEN2_VL, QWEN_PROCESSOR))
    assert family.name == "qwen2_vl"
    assert family.image_token_id == 151655
    assert family.num_deepstack_levels == 0
    assert family.frequency_axes.tolist() == [0] * 16 + [1] * 24 + [2] * 24
    assert family.preparer.plan(1000, 800).num_embeddings == 36 * 29
    assert family.expand(family.preparer.plan(56, 56)) == [151655] * 4


def test_llava_as_published(tmp_path):
    family = family_for(write(tmp_path, LLAVA, LLAVA_PROCESSOR))
    assert family.name == "llava"
    assert family.frequency_axes is None
    assert family.expand(family.preparer.plan(640, 480)) == [32000] * 576
    assert family.positions(5, [])[0].tolist() == [[0, 1, 2, 3, 4]]


def test_llama_as_published(tmp_path):
    family = family_for(write(tmp_path, LLAMA_3_2))
    assert family.name == "causal"
    assert family.preparer is None
    assert family.image_token_id is None


def test_mistral_with_and_without_its_window(tmp_path):
    mistral = {"model_type": "mistral", "max_position_embeddings": 32768}
    with pytest.raises(UnsupportedModelError, match="sliding window of 4096"):
        family_for(write(tmp_path, mistral | {"sliding_window": 4096}))
    assert family_for(write(tmp_path, mistral | {"sliding_window": None})).name == "causal"


def test_qwen2_ignores_a_window_that_is_turned_off(tmp_path):
    qwen2 = {"model_type": "qwen2", "max_position_embeddings": 32768, "sliding_window": 4096}
    assert family_for(write(tmp_path, qwen2 | {"use_sliding_window": False})).name == "causal"
    with pytest.raises(UnsupportedModelError, match="sliding window of 4096"):
        family_for(write(tmp_path, qwen2 | {"use_sliding_window": True, "max_window_layers": 0}))


def test_an_unknown_model_type_lists_the_known_ones(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"'gemma3'") as caught:
        family_for(write(tmp_path, {"model_type": "gemma3"}))
    assert all(model_type in caught.value.message for model_type in known_model_types())
    assert "vLLM" in caught.value.hint


def test_quantized_weights_are_refused(tmp_path):
    quantized = LLAMA_3_2 | {"quantization_config": {"quant_method": "awq"}}
    with pytest.raises(UnsupportedModelError, match="quantized"):
        family_for(write(tmp_path, quantized))


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(EngineStartError, match=r"no config\.json") as caught:
        family_for(tmp_path)
    assert "Hugging Face directory" in caught.value.hint


def test_a_picture_model_without_its_processor(tmp_path):
    with pytest.raises(EngineStartError, match=r"preprocessor_config\.json"):
        family_for(write(tmp_path, QWEN2_VL))


def test_a_configuration_that_transformers_refuses(tmp_path):
    with pytest.raises(EngineStartError, match=r"config\.json"):
        family_for(write(tmp_path, QWEN2_VL | {"vision_config": {"depth": "deep"}}, QWEN_PROCESSOR))


def test_a_text_part_that_the_decoder_lacks(tmp_path):
    gemma = LLAVA | {"text_config": {"model_type": "gemma"}}
    with pytest.raises(UnsupportedModelError, match="'gemma'"):
        family_for(write(tmp_path, gemma, LLAVA_PROCESSOR))
