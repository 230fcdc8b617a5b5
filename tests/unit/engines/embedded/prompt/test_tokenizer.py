import pytest

from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.errors import EngineStartError
from tests.unit.engines.embedded.output.made_tokenizers import byte_fallback
from tests.unit.engines.embedded.prompt.directories import PACKAGED, model_directory


def test_packaged_model():
    tokenizer = ModelTokenizer(PACKAGED)
    assert tokenizer.vocab_size == 1024
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.special_tokens[6] == "<|image_pad|>"
    assert len(tokenizer.special_tokens) == 8


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, {2}),  # the text configuration's and the tokenizer's
        ({"eos_token_id": 0}, {0, 2}),
        ({"eos_token_id": [0, 5]}, {0, 2, 5}),
        ({"do_sample": False}, {2}),
    ],
)
def test_end_of_text_ids(tmp_path, generation, expected):
    assert ModelTokenizer(model_directory(tmp_path, generation=generation)).eos_token_ids == expected


def test_truncation_in_the_file_does_not_cut_prompts(tmp_path):
    tokenizer = byte_fallback(strips_space=True)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    config = {"model_type": "llama", "vocab_size": 300}
    loaded = ModelTokenizer(model_directory(tmp_path, tokenizer=tokenizer, config=config))
    assert len(loaded.backend.encode("abba", add_special_tokens=False).ids) == 4
    assert loaded.vocab_size == 300


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_broken_file_stops_the_start(tmp_path, name):
    directory = model_directory(tmp_path / "model")
    (directory / name).write_text("{")
    with pytest.raises(EngineStartError, match=r"tokenizer|config\.json"):
        ModelTokenizer(directory)


def test_missing_directory_stops_the_start(tmp_path):
    with pytest.raises(EngineStartError, match="absent"):
        ModelTokenizer(tmp_path / "absent")
