"""What is worked out beforehand against what vLLM reported."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import ChiasmError, EngineStartError, InvalidSettingError
from chiasm.launch.vllm.fit import Question, fit, kv_bytes_per_token, kv_tokens
from chiasm.launch.vllm.weights import Weights, weights_of
from chiasm.media.prepare.base import ImagePlan

GIB = 2**30
QWEN3_VL_2B = {
    "text_config": {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
    },
    "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]},
}  # fmt: skip
WEIGHTS = Weights(0, int(4.08 * GIB))


def picture(side):
    merged = side // 32
    return ImagePlan(
        width=side, height=side, num_embeddings=merged**2, num_prompt_tokens=merged**2,
        grid_thw=(1, 2 * merged, 2 * merged), merge_size=2, resized=(side, side),
    )  # fmt: skip


def asked(share, side):
    return Question(device_bytes=8 * GIB, memory_share=share, largest=picture(side), max_running=256)


def test_the_reported_figures_of_an_8_gb_device_are_reproduced_with_and_without_a_hint_of_sizes():
    """vLLM 0.32, Qwen3-VL-2B in bfloat16: 4,352 tokens (1.06 requests) and 19,904 (4.86); at 0.85 it did not start."""
    without, hinted = fit(QWEN3_VL_2B, WEIGHTS, asked(0.92, 4096)), fit(QWEN3_VL_2B, WEIGHTS, asked(0.92, 896))
    assert without.max_picture_embeddings == 16_384
    assert without.kv_bytes_per_token == 114_688
    assert without.kv_tokens == pytest.approx(4352, rel=0.2)
    assert hinted.kv_tokens == pytest.approx(19_904, rel=0.1)
    assert hinted.kv_bytes - without.kv_bytes == pytest.approx((2.13 - 0.47) * GIB, rel=0.05)
    assert hinted.does_fit
    assert not fit(QWEN3_VL_2B, WEIGHTS, asked(0.85, 4096)).does_fit


def test_room_for_keys_and_values_is_what_vllm_says_on_cpu():
    """vLLM 0.32 for the packaged model in float32: 262,144 tokens in 1 GiB (tests/vllm compares a live server)."""
    text = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    assert kv_tokens(GIB, kv_bytes_per_token(text, 4), "cpu") == 262_144


def test_parts_add_up_to_what_may_be_used():
    found = fit(QWEN3_VL_2B, WEIGHTS, asked(0.92, 896))
    parts = (
        found.weights_bytes, found.encoder_cache_bytes, found.encoder_work_bytes, found.language_work_bytes,
        found.overhead_bytes, found.kv_bytes,
    )  # fmt: skip
    assert sum(parts) == found.usable_bytes
    assert found.kv_tokens % 16 == 0
    assert found.full_length_requests == found.kv_tokens / 4096


def test_a_split_model_has_more_room():
    from msgspec.structs import replace

    one = asked(0.92, 896)
    alone, split = fit(QWEN3_VL_2B, WEIGHTS, one), fit(QWEN3_VL_2B, WEIGHTS, replace(one, tensor_parallel=2))
    assert split.weights_bytes == alone.weights_bytes // 2
    assert split.kv_tokens > 2 * alone.kv_tokens


def test_a_model_without_eyes_reserves_nothing_for_them():
    text_only = {**QWEN3_VL_2B["text_config"]}
    found = fit(text_only, WEIGHTS, Question(device_bytes=8 * GIB, memory_share=0.9))
    assert (found.encoder_cache_bytes, found.encoder_work_bytes, found.max_picture_embeddings) == (0, 0, 0)


def test_weights_are_added_up_from_headers_tower_apart(tmp_path):
    tensors = {
        "model.visual.blocks.0.weight": np.zeros((3, 4), np.float32),
        "model.language_model.weight": np.zeros((5, 2), np.float16),
        "model.language_model.quantized": np.zeros((7,), np.int8),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert weights_of(tmp_path, "bfloat16") == Weights(24, 20 + 7)
    assert weights_of(tmp_path, "float32") == Weights(48, 40 + 7)


def test_weights_that_cannot_be_read_are_a_plain_error(tmp_path):
    with pytest.raises(EngineStartError, match=r"no \.safetensors"):
        weights_of(tmp_path, "float32")
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(EngineStartError, match="no end"):
        weights_of(tmp_path, "float32")
    (tmp_path / "a.safetensors").write_bytes((2).to_bytes(8, "little") + b"{")
    with pytest.raises(EngineStartError, match="Cannot read"):
        weights_of(tmp_path, "float32")


def test_the_command_prints_both_columns_and_says_when_it_does_not_fit():
    arguments = ["plan", "fit", "--device-gib", "4", "--picture", "256x256"]
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    columns = json.loads(shown.output)
    assert list(columns) == ["any picture", "up to 256x256"]
    assert columns["up to 256x256"]["kv_tokens"] == columns["any picture"]["kv_tokens"] > 0
    table = CliRunner().invoke(app, arguments)
    assert "tokens of keys and values" in table.output
    small = CliRunner().invoke(app, ["plan", "fit", "--device-gib", "0.5"])
    assert small.exit_code == 1
    assert "does not fit" in small.output
    wrong = CliRunner().invoke(app, [*arguments[:-1], "large"])
    assert wrong.exit_code != 0


@pytest.mark.parametrize("size", ["0x0", "256x0", "256", "axb", "\u00b2x\u00b2", "1x2x3", "256x1000000"])
def test_what_is_no_size_of_a_picture_is_a_wrong_setting(size):
    shown = CliRunner().invoke(app, ["plan", "fit", "--picture", size])
    assert isinstance(shown.exception, InvalidSettingError)
    assert "is not a size" in str(shown.exception)


def test_a_picture_of_a_shape_that_no_model_takes_is_told():
    assert isinstance(CliRunner().invoke(app, ["plan", "fit", "--picture", "1x99999"]).exception, ChiasmError)
