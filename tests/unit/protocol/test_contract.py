"""Which versions of the contract work together, and what those that do not are told."""

import pytest

from chiasm.errors import ContractVersionError
from chiasm.protocol.contract import CONTRACT_VERSION, check_gateway, check_worker, version_to_speak

NEIGHBOURS = [CONTRACT_VERSION - 1, CONTRACT_VERSION, CONTRACT_VERSION + 1]


@pytest.mark.parametrize("version", NEIGHBOURS)
def test_neighbours_speak_the_older_of_their_versions(version):
    check_worker("w", version)
    check_gateway(version)
    assert version_to_speak(str(version)) == min(version, CONTRACT_VERSION)


def test_a_gateway_that_does_not_say_its_version_is_answered_in_the_first():
    assert version_to_speak(None) == 1


@pytest.mark.parametrize(
    ("check", "version", "first"),
    [
        (lambda version: check_worker("encode-0", version), CONTRACT_VERSION - 2, "worker 'encode-0'"),
        (lambda version: check_worker("encode-0", version), CONTRACT_VERSION + 2, "this gateway"),
        (check_gateway, CONTRACT_VERSION - 2, "the gateway"),
        (check_gateway, CONTRACT_VERSION + 2, "this worker"),
        (lambda version: version_to_speak(str(version)), CONTRACT_VERSION + 2, "this worker"),
    ],
)
def test_who_is_no_neighbour_is_told_what_to_upgrade_first(check, version, first):
    with pytest.raises(ContractVersionError) as caught:
        check(version)
    assert caught.value.code == "contract_version_mismatch"
    assert f"Upgrade {first} first" in caught.value.hint
    assert str(version) in caught.value.message


@pytest.mark.parametrize("said", ["", "two", "-1", "1.0", "9" * 5000, "²"])
def test_a_version_that_is_no_number_is_refused(said):
    with pytest.raises(ContractVersionError):
        version_to_speak(said)
