"""Model directories without weights: the packaged model's tokenizer with other chat templates and configurations."""

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import chiasm

PACKAGED = Path(chiasm.__file__).parent / "models" / "tiny_vlm"
IMAGE_PAD = 6

# As the models that are named write their conversations, in our words.
PARTS_ONLY = (
    "{% for m in messages %}{{ m.role | upper + ': ' }}"
    "{% for c in m.content | selectattr('type', 'equalto', 'image') %}{{ '<|image_pad|>\n' }}{% endfor %}"
    "{% for c in m.content | selectattr('type', 'equalto', 'text') %}{{ c.text }}{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
STRINGS_ONLY = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PRINTS_PARTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ eos_token + m.content }}{% endfor %}"
)
DROPS_ASSISTANT_PICTURES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}{% for c in m.content %}"
    "{% if c.type == 'text' %}{{ c.text }}{% elif m.role == 'user' %}{{ '<|image_pad|>' }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def model_directory(
    path: Path,
    *,
    template: str | None = None,
    template_file: str = "chat_template.jinja",
    tokenizer: Tokenizer | None = None,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
) -> Path:
    """Write the files a prompt needs; without `template` the model has none."""
    path.mkdir(parents=True, exist_ok=True)
    described = json.loads((PACKAGED / "tokenizer_config.json").read_text())
    if template_file == "tokenizer_config.json":
        described["chat_template"] = template
    elif template_file == "chat_template.json":
        (path / template_file).write_text(json.dumps({"chat_template": template}))
    elif template is not None:
        (path / template_file).write_text(template)
    if tokenizer is None:
        shutil.copy(PACKAGED / "tokenizer.json", path)
    else:
        tokenizer.save(str(path / "tokenizer.json"))
        described = {"tokenizer_class": "TokenizersBackend"}
    (path / "tokenizer_config.json").write_text(json.dumps(described))
    (path / "config.json").write_text(json.dumps(config or json.loads((PACKAGED / "config.json").read_text())))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path
