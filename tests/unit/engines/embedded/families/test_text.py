"""Which text models the decoder computes."""

from types import SimpleNamespace

import pytest

from chiasm.engines.embedded.families.text import require_llama_shaped, sliding_window
from chiasm.errors import UnsupportedModelError


def config(**changes):
    values = {
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "max_position_embeddings": 8192,
    }
    return SimpleNamespace(**(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "qwen3_vl_text"},
        {"rope_parameters": None},
        {"rope_parameters": {"rope_type": "llama3"}},
        {"rope_parameters": {"rope_type": "yarn", "partial_rotary_factor": 1.0}},
        {"sliding_window": None},
        {"sliding_window": 8192},
        {"sliding_window": 100, "layer_types": ["full_attention"] * 2},
    ],
)
def test_supported(changes):
    require_llama_shaped(config(**changes))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "gemma3_text"}, "'gemma3_text'"),
        ({"model_type": "qwen3_moe"}, "'qwen3_moe'"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"sliding_window": 4096}, "window of 4096 tokens in a context of 8192"),
        ({"sliding_window": 4096, "layer_types": ["full_attention", "sliding_attention"]}, "window of 4096"),
    ],
)
def test_refused(changes, what):
    with pytest.raises(UnsupportedModelError, match=what) as caught:
        require_llama_shaped(config(**changes))
    assert "vLLM" in caught.value.hint


def test_the_window_counts_only_where_a_layer_slides():
    assert sliding_window(config()) is None
    assert sliding_window(config(sliding_window=5)) == 5
    assert sliding_window(config(sliding_window=5, layer_types=["full_attention"])) is None
