"""Whether models can be split as asked, and who gets which devices."""

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.vllm.crew import vllm_specs
from chiasm.launch.vllm.devices import assigned, check_split
from chiasm.settings import RoutingSettings, VllmSettings

TEXT = {"num_attention_heads": 12, "num_hidden_layers": 4}
SPECS = vllm_specs(RoutingSettings(topology="e-pd", encoders=1, prefills=2))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"tensor_parallel": 5}, "12 attention heads"),
        ({"pipeline_parallel": 5}, "only 4 layers"),
        ({"expert_parallel": True}, "no experts"),
    ],
)
def test_a_split_that_the_model_does_not_allow_is_refused_with_numbers(settings, what):
    with pytest.raises(InvalidSettingError, match=what):
        check_split(VllmSettings(**settings), TEXT)


def test_a_split_that_fits_is_none_of_our_business():
    check_split(VllmSettings(tensor_parallel=4, pipeline_parallel=4), TEXT)
    check_split(VllmSettings(expert_parallel=True), TEXT | {"num_experts": 8})


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
