"""What is made of vLLM's log."""

import pytest

from chiasm.launch.vllm.startup import reason_of, step_of

LOG = "(EngineCore pid=7) ERROR 11-30 01:14:00 [core.py:1] "


def test_lines_of_the_log_are_steps_of_the_start():
    known = [
        "(APIServer pid=1) INFO 11-30 01:14:00 [model.py:733] Resolved architecture: Qwen3VLForConditionalGeneration",
        "(EngineCore pid=2) INFO 11-30 01:14:44 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x",
        "(EngineCore pid=2) INFO 11-30 01:14:50 [kv_cache_utils.py:1] CPU KV cache size: 262,144 tokens, Maximum",
        "INFO:     Application startup complete.",
    ]
    shares = [step_of(line)[1] for line in known]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert step_of("INFO something else") is None


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            "ValueError: To serve at least one request with the model's max seq len (4096), 3.5 GiB KV cache is needed",
            "do not fit",
            "picture_hint",
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing", "keys and values", "memory_share"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "too little memory", "memory_share"),
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision", "goes with its torch"),
        ("python: No module named vllm.entrypoints", "no vLLM", "vllm.python"),
        ("ModuleNotFoundError: No module named 'chiasm'", "connector cannot be loaded", "no-deps"),
        (
            "chiasm.errors.InvalidSettingError: ChiasmECConnector: start consumers with --scheduler-cls a.b.C",
            "--scheduler-cls a.b.C",
            "extra_arguments",
        ),
        ("ModuleNotFoundError: No module named 'xxhash'", "package is missing", "Install it"),
        (
            "  Value error, The model has type `nope`, but Transformers does not recognize this architecture.",
            "does not know this model's architecture",
            "embedded engine",
        ),
        ("api_server.py: error: unrecognized arguments: --nonsense", "does not know an argument", "extra_arguments"),
    ],
)
def test_a_failed_start_is_explained_in_one_line_with_what_to_do(line, message, hint):
    reason = reason_of(["noise", LOG + line, "Traceback (most recent call last):", "RuntimeError: Engine core failed"])
    assert message in reason.message
    assert "\n" not in reason.message
    assert "pid=7" not in reason.message
    assert hint in reason.hint


def test_what_nobody_foresaw_is_shown_by_its_last_error():
    assert reason_of(["a", "KeyError: 'strange'", "b"]).message == "KeyError: 'strange'"
    refused = ["ValidationError: 1 validation error for X", "  Value error, the strange value [type=value_error]", "b"]
    assert reason_of(refused).message == "the strange value"
    assert reason_of(["a", "the end", ""]).message == "the end"
    assert reason_of([]).message == "it said nothing"
