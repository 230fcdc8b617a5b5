"""What is let in of an adapter's files, and that everything else ends in one coded error before weights are used."""

import os
import time

import msgspec
import pytest

from chiasm.adapters.files import preloaded, read_adapter
from chiasm.adapters.sizes import base_model
from chiasm.errors import AdapterError
from chiasm.settings import AdapterSettings
from tests.unit.adapters.adapter_files import BASE, PREFIX, safetensors, shapes, write


@pytest.fixture
def settings(tmp_path):
    return AdapterSettings(roots=(str(tmp_path / "allowed"),), max_bytes=2**20, max_rank=16)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "allowed" / "mine"


def refused(folder, settings, match):
    with pytest.raises(AdapterError, match=match) as caught:
        read_adapter(str(folder), BASE, settings)
    assert caught.value.code == "adapter_refused"
    return caught.value


def test_a_sound_adapter_is_described_and_hashed(folder, settings):
    files = read_adapter(str(write(folder)), BASE, settings)
    assert (files.targets, files.config.scale, len(files.stored)) == (("q_proj",), 2.0, 2)
    assert read_adapter(str(folder), BASE, settings).revision == files.revision
    write(folder, lora_alpha=5)
    assert read_adapter(str(folder), BASE, settings).revision != files.revision, "of the configuration, too"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "type"),
        ({"r": 0}, "rank is 0"),
        ({"r": 17}, "rank is 17"),
        ({"r": 2**70}, "rank|read"),
        ({"r": "2"}, "read"),
        ({"lora_alpha": float("inf")}, "read|lora_alpha"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 9}}, "rank_pattern"),
        ({"alora_invocation_tokens": [1]}, "alora"),
        ({"base_model_name_or_path": "org/other-model"}, "'other-model'"),
        ({"init_lora_weights": "pissa"}, "'pissa', which changes the model's own weights"),
        ({"init_lora_weights": "pissa_niter_16"}, "'pissa_niter_16'"),
        ({"init_lora_weights": "olora"}, "'olora'"),
        ({"init_lora_weights": "OLoRA"}, "'OLoRA'"),
        ({"init_lora_weights": "corda"}, "'corda'"),
        ({"init_lora_weights": "lora_ga"}, "'lora_ga'"),
        ({"init_lora_weights": "loftq"}, "'loftq'"),
        ({"init_lora_weights": ["pissa"]}, "read"),
    ],
)
def test_configurations_that_mean_something_else_are_refused(folder, settings, change, match):
    refused(write(folder, **change), settings, match)


@pytest.mark.parametrize("beginning", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_adapters_that_leave_the_model_as_it_is_are_let_in(folder, settings, beginning):
    """Also those that were converted: PEFT writes `true` for them."""
    assert read_adapter(str(write(folder, init_lora_weights=beginning)), BASE, settings).targets == ("q_proj",)


def test_other_names_of_the_base_model_may_be_allowed(folder, settings):
    base = base_model(
        {
            "num_hidden_layers": 2,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 12,
        },
        {"./models/Tiny/", "Copy-Of-It"},
    )
    for name in ("copy-of-it", "elsewhere/TINY", None, ""):
        assert read_adapter(str(write(folder, base_model_name_or_path=name)), base, settings).targets == ("q_proj",)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (b"", "cut off"),
        (b"\xff" * 64, "cut off"),
        ((2**40).to_bytes(8, "little") + b"{}", "cut off"),
        ((2).to_bytes(8, "little") + b"[]", "damaged"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "damaged"),
        ((2).to_bytes(8, "little") + b"{}", "0 bytes"),
        (safetensors(shapes(), tail=b"x"), "bytes, the file"),
        (safetensors(shapes())[:-1], "bytes, the file"),
        (safetensors(shapes(), dtype="F64", size=8), "type F64"),
        (safetensors(shapes(), dtype="F16", size=4), "does not fit"),
        (safetensors(shapes(rank=3)), "rank 2"),
        (safetensors(shapes(outputs=9)), "another model|want"),
        (safetensors(shapes(layer=2)), "layer that the model does not have"),
        (safetensors(shapes(target="self_attn.qkv_proj")), "not supported"),
        (safetensors({"base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight": (2, 8)}), "vision tower"),
        (safetensors({"base_model.model.lm_head.lora_A.weight": (2, 8)}), "language model"),
        (safetensors({f"{PREFIX}0.self_attn.q_proj.lora_A.weight": (2, 8)}), "only one of the two"),
        (safetensors(shapes() | shapes(target="self_attn.q_proj.lora_A.default")), "not supported"),
        (
            safetensors(shapes(), header={f"{PREFIX}0.self_attn.q_proj.lora_A.weight": {"data_offsets": [-64, 0]}}),
            "fit",
        ),
        (safetensors(shapes(), header={f"{PREFIX}0.self_attn.q_proj.lora_B.weight": {"data_offsets": [0, 64]}}), "fit"),
        (safetensors(shapes(), header={f"{PREFIX}0.self_attn.q_proj.lora_B.weight": {"shape": [2**62, 2**62]}}), "fit"),
        (safetensors(shapes(), header={f"{PREFIX}0.self_attn.q_proj.lora_B.weight": {"shape": [-8, -2]}}), "fit"),
        (safetensors(shapes(), header={f"{PREFIX}0.self_attn.q_proj.lora_B.weight": {"shape": [16]}}), "fit"),
        (safetensors(shapes(), header={f"{PREFIX}0.self_attn.q_proj.lora_B.weight": {"shape": "x"}}), "damaged"),
    ],
)
def test_damaged_and_hostile_weights_are_refused(folder, settings, weights, match):
    refused(write(folder, weights), settings, match)


def test_a_shape_of_very_many_dimensions_is_not_multiplied_out(folder, settings):
    """The product of these has millions of digits: minutes, with the interpreter's lock held."""
    shape = [2**32 - 1] * 500_000
    weights = safetensors(shapes(), header={f"{PREFIX}0.self_attn.q_proj.lora_B.weight": {"shape": shape}})
    folder = write(folder, weights)
    began_s = time.process_time()
    refused(folder, msgspec.structs.replace(settings, max_bytes=2**25), "does not fit its place")
    assert time.process_time() - began_s < 5


def test_weights_larger_than_the_budget_are_not_read(folder, settings):
    write(folder)
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(2**40)
    refused(folder, settings, "more than 1048576")


def test_pickled_weights_are_not_looked_at(folder, settings):
    write(folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(folder, settings, "no readable adapter_model.safetensors")


def test_nothing_outside_of_the_roots_is_read(folder, settings, tmp_path):
    outside = write(tmp_path / "outside")
    inside = write(folder)
    (inside.parent / "link").symlink_to(outside, target_is_directory=True)
    for path in (
        outside,
        inside.parent / ".." / "outside",
        inside.parent / "link",
        tmp_path / "allowed-not",
        "/proc/self/cwd",
        "relative/folder",
        "~no-such-user-here/adapter",
        f"{inside}\0",
    ):
        error = refused(path, settings, "allowed roots|absolute path")
        assert "readable" not in error.message, "nor does the answer say what is there"
    read_adapter(str(inside / ".." / "mine"), BASE, settings)
    refused(inside, AdapterSettings(), "allowed roots")


def test_files_that_lead_outside_are_refused(folder, settings, tmp_path):
    outside = write(tmp_path / "outside")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        write(folder)
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
        refused(folder, settings, "outside of the allowed root")
        (folder / name).unlink()
        write(folder)
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")
    refused(folder, settings, "not a regular file")
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").symlink_to(folder / "adapter_config.json")
    refused(folder, settings, "no readable")


def test_folders_named_by_the_settings_are_allowed_and_no_others_beside_them(tmp_path):
    named, other = write(tmp_path / "one"), write(tmp_path / "two")
    settings = AdapterSettings(preload=(f"mine={named}",))
    assert preloaded(settings) == [("mine", str(named))]
    read_adapter(str(named), BASE, settings)
    refused(other, settings, "allowed roots")
    with pytest.raises(AdapterError, match="NAME=DIR"):
        preloaded(AdapterSettings(preload=("mine",)))
