"""Whether models can be split as asked, and who gets which devices."""

import pytest

from chiasm.errors import EngineStartError, InvalidSettingError
from chiasm.launch.vllm.crew import vllm_specs
from chiasm.launch.vllm.devices import among, assigned, check_cores, check_split
from chiasm.settings import RoutingSettings, VllmSettings

TEXT = {"num_attention_heads": 12, "num_key_value_heads": 4, "num_hidden_layers": 4}
SPECS = vllm_specs(RoutingSettings(topology="e-pd", encoders=1, prefills=2))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"tensor_parallel": 5}, "12 attention heads"),
        ({"tensor_parallel": 3}, "12 attention heads and 4 heads of keys and values"),
        ({"pipeline_parallel": 5}, "only 4 layers"),
        ({"expert_parallel": True}, "no experts"),
    ],
)
def test_a_split_that_the_model_does_not_allow_is_refused_with_numbers(settings, what):
    with pytest.raises(InvalidSettingError, match=what):
        check_split(VllmSettings(**settings), TEXT)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("value", ["", "x", -1, 1.5, []], ids=str)
def test_a_model_that_does_not_say_its_shape_is_one_error(name, value):
    optional = name == "num_key_value_heads" and not value
    if not optional:
        with pytest.raises(EngineStartError, match=name):
            check_split(VllmSettings(), TEXT | {name: value})


def test_a_configuration_that_is_none_is_one_error():
    for text in ({}, 5, "x", []):
        with pytest.raises(EngineStartError, match="num_attention_heads"):
            check_split(VllmSettings(), text)


def test_a_split_that_fits_is_none_of_our_business():
    check_split(VllmSettings(tensor_parallel=4, pipeline_parallel=4), TEXT)
    check_split(VllmSettings(expert_parallel=True), TEXT | {"num_experts": 8})


@pytest.mark.parametrize(
    ("kv_heads", "fitting"), [(4, "1, 2, 4, 12"), (2, "1, 2, 4, 6, 12"), (12, "1, 2, 3, 4, 6, 12")]
)
def test_the_sizes_that_fit_are_those_that_vllm_takes(kv_heads, fitting):
    with pytest.raises(InvalidSettingError) as caught:
        check_split(VllmSettings(tensor_parallel=5), TEXT | {"num_key_value_heads": kv_heads})
    assert caught.value.hint == f"Choose one of {fitting}"
    for size in fitting.split(", "):
        check_split(VllmSettings(tensor_parallel=int(size)), TEXT | {"num_key_value_heads": kv_heads})


def test_on_cpu_every_part_of_a_server_has_a_core():
    check_cores(VllmSettings(tensor_parallel=2, data_parallel=2), 4)
    with pytest.raises(InvalidSettingError, match=r"tensor_parallel 2 x vllm\.data_parallel 2 makes 4 .* has 3 cores"):
        check_cores(VllmSettings(tensor_parallel=2, data_parallel=2), 3)


def test_devices_are_given_out_in_turn():
    assert assigned(SPECS, VllmSettings(tensor_parallel=2), 5) == ["0", "1,2", "3,4"]


def test_servers_may_share_devices_where_the_operator_says_so():
    assert assigned(SPECS, VllmSettings(devices=("0", "0", "1")), 2) == ["0", "0", "1"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"tensor_parallel": 2}, "need 5 CUDA devices"),
        ({"devices": ("0", "1")}, "2 entries for 3 servers"),
        ({"devices": ("0", "1", "9")}, "names '9'"),
        ({"devices": ("0", "1,2", "3")}, "names '1,2'"),
        ({"devices": ("0", "1", "x")}, "names 'x'"),
    ],
)
def test_devices_that_are_not_there_are_refused_before_anything_starts(settings, what):
    with pytest.raises(InvalidSettingError, match=what):
        assigned(SPECS, VllmSettings(**settings), 4)


@pytest.mark.parametrize(
    ("numbers", "seen", "expected"),
    [("0,1", "", "0,1"), ("0", "3", "3"), ("1, 0", "2,5", "5,2"), ("0", "GPU-8f", "GPU-8f")],
)
def test_devices_are_counted_among_those_that_may_be_seen(numbers, seen, expected):
    assert among(numbers, seen) == expected
