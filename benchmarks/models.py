"""The models that are measured: the packaged one, and random ones large enough to leave the caches."""

import json
import shutil
import tempfile
from pathlib import Path

TINY = Path(__file__).parents[1] / "src/chiasm/models/tiny_vlm"
MAX_TOKEN = {"tiny": 900, "120m": 30000}
REQUESTS_PER_S = {"tiny": 100.0, "120m": 20.0}


def directory(name: str) -> Path:
    """Where a model is; the random one is made on first use, its weights stored in bfloat16."""
    if name == "tiny":
        return TINY
    path = Path(tempfile.gettempdir()) / "chiasm-benchmark-120m"
    if not (path / "tokenizer_config.json").exists():
        _make(path)
    return path


def _make(path: Path) -> None:
    import torch  # noqa: PLC0415 - only the first run needs it
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2304,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / file, path / file)


def picture_model(name: str) -> Path:
    """One that has eyes: `tiny`, or `120m` with random weights; made on first use."""
    if name == "tiny":
        return TINY
    path = Path(tempfile.gettempdir()) / "chiasm-benchmark-vlm-120m"
    if not (path / "tokenizer_config.json").exists():
        _make_picture_model(path)
    return path


def _make_picture_model(path: Path) -> None:
    """The packaged model's architecture and tokenizer, larger: 83 million parameters of text, 37 of the encoder."""
    import torch  # noqa: PLC0415 - only the first run needs it
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration  # noqa: PLC0415

    torch.manual_seed(0)
    config = json.loads((TINY / "config.json").read_text())
    text = {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 12, "num_attention_heads": 12}
    config["text_config"] |= text | {"num_key_value_heads": 4}
    vision = {"hidden_size": 512, "intermediate_size": 2048, "depth": 8, "num_heads": 8}
    config["vision_config"] |= vision | {"out_hidden_size": text["hidden_size"]}
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(config))
    model.to(torch.bfloat16).save_pretrained(path)
    for file in TINY.iterdir():
        if file.suffix in (".json", ".jinja") and not (path / file.name).exists():
            shutil.copy(file, path / file.name)
