"""The preparer is found from JSON files alone, and what is wrong with them is said."""

import json
import subprocess
import sys

import pytest

from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.media.prepare.clip import ClipPreparer, LlavaPreparer, SiglipPreparer
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer
from chiasm.media.prepare.registry import preparer_for

CLIP_MODEL = {"vision_config": {"model_type": "clip_vision_model", "image_size": 224}}
SIGLIP_MODEL = {"vision_config": {"model_type": "siglip_vision_model", "image_size": 224}}


def write(directory, processor=None, model=None, name="preprocessor_config.json"):
    if processor is not None:
        (directory / name).write_text(json.dumps(processor))
    (directory / "config.json").write_text(json.dumps(model or {}))
    return directory


@pytest.mark.parametrize(
    ("kind", "model", "expected"),
    [
        ("Qwen2VLImageProcessor", {}, Qwen2VLPreparer),
        ("Qwen2VLImageProcessorFast", {}, Qwen2VLPreparer),
        ("Qwen2VLImageProcessorPil", {}, Qwen2VLPreparer),
        ("Qwen2_5_VLImageProcessor", {}, Qwen2VLPreparer),
        ("CLIPImageProcessor", CLIP_MODEL, ClipPreparer),
        ("CLIPFeatureExtractor", CLIP_MODEL, ClipPreparer),
        ("LlavaImageProcessorFast", CLIP_MODEL, LlavaPreparer),
        ("SiglipImageProcessor", SIGLIP_MODEL, SiglipPreparer),
    ],
)
def test_kinds_in_all_their_spellings(tmp_path, kind, model, expected):
    assert type(preparer_for(write(tmp_path, {"image_processor_type": kind}, model))) is expected


def test_the_old_name_of_the_kind_is_read(tmp_path):
    write(tmp_path, {"feature_extractor_type": "CLIPFeatureExtractor"}, CLIP_MODEL)
    assert isinstance(preparer_for(tmp_path), ClipPreparer)


def test_the_newer_file_is_read(tmp_path):
    nested = {"image_processor": {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}}
    write(tmp_path, nested, name="processor_config.json")
    preparer = preparer_for(tmp_path)
    assert preparer is not None
    assert preparer.plan(320, 320).grid_thw == (1, 20, 20)


def test_a_text_model_has_none(tmp_path):
    assert preparer_for(write(tmp_path)) is None
    write(tmp_path, {"chat_template": "x"}, name="processor_config.json")
    assert preparer_for(tmp_path) is None


def test_an_unknown_kind_names_the_known_ones(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"'FuyuImageProcessor'.*Qwen2VLImageProcessor") as caught:
        preparer_for(write(tmp_path, {"image_processor_type": "FuyuImageProcessor"}))
    assert caught.value.hint == "serve it by vLLM: chiasm serve --engine vllm --topology agg"


def test_a_missing_kind_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="'None'"):
        preparer_for(write(tmp_path, {"size": 224}))


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_broken_files_are_named(tmp_path, text):
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(EngineStartError, match=r"preprocessor_config\.json"):
        preparer_for(tmp_path)


def test_null_settings_take_their_defaults(tmp_path):
    silent = preparer_for(write(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor"}))
    nulls = {"image_processor_type": "Qwen2VLImageProcessor", "size": None, "patch_size": None, "image_mean": None}
    explicit = preparer_for(write(tmp_path, nulls))
    assert silent is not None
    assert explicit is not None
    assert silent.revision == explicit.revision


@pytest.mark.parametrize("setting", ["do_resize", "do_convert_rgb"])
def test_what_no_model_turns_off_is_refused(tmp_path, setting):
    with pytest.raises(UnsupportedModelError, match=f"{setting}=False"):
        preparer_for(write(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor", setting: False}))


def test_torch_is_not_imported(tmp_path):
    write(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor"})
    code = (
        "import sys, pathlib; from chiasm.media.prepare.registry import preparer_for;"
        f"print(preparer_for(pathlib.Path({str(tmp_path)!r})).plan(640, 480).num_embeddings);"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert output.split("\n")[:2] == ["391", "[]"]
