import pytest

from chiasm.errors import EngineStartError, InvalidRequestError, UnsupportedFeatureError
from chiasm.protocol.generation import GenerateRequest, SamplingParams, TokensPrompt
from chiasm.protocol.kv import KvHandle, KvMetadata
from chiasm.workers.roles import check_request, check_roles

KV = KvHandle(
    connector="shm",
    key="k",
    metadata=KvMetadata(
        num_tokens=1,
        shape=(1, 2, 1, 1, 1),
        dtype="float32",
        model_revision="m",
        prompt_hash="0" * 64,
        checksum="c",
    ),
    expires_at_s=0.0,
)


def request(*, max_tokens=None, hands_over_kv=False, kv=None) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        prompt=TokensPrompt((1,)),
        sampling=SamplingParams(max_tokens=max_tokens),
        hands_over_kv=hands_over_kv,
        kv=kv,
    )


def test_roles_come_in_path_order_and_once():
    assert check_roles(("decode", "encode", "decode"), has_transport=True) == ("encode", "decode")


@pytest.mark.parametrize("roles", [(), ("sing",), ("encode", "sing")])
def test_no_or_unknown_roles_are_refused(roles):
    with pytest.raises(EngineStartError):
        check_roles(roles, has_transport=True)


@pytest.mark.parametrize("roles", [("encode",), ("prefill",), ("decode",), ("encode", "prefill"), ("encode", "decode")])
def test_part_of_the_way_needs_a_transport(roles):
    with pytest.raises(EngineStartError, match="transport"):
        check_roles(roles, has_transport=False)
    assert check_roles(roles, has_transport=True) == roles
    assert check_roles(("prefill", "decode"), has_transport=False) == ("prefill", "decode")


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        (request(), ("prefill", "decode")),
        (request(max_tokens=1), ("prefill",)),
        (request(max_tokens=1, hands_over_kv=True), ("prefill",)),
        (request(kv=KV), ("decode",)),
        (request(max_tokens=1, kv=KV), ("decode",)),
    ],
)
def test_a_request_needs_its_roles_and_no_others(asked, needed):
    check_request(asked, needed, has_transport=True)
    for missing in needed:
        with pytest.raises(UnsupportedFeatureError, match="its roles are"):
            check_request(asked, {"encode", "prefill", "decode"} - {missing}, has_transport=True)


def test_handing_over_ends_with_the_first_token_and_needs_a_transport():
    with pytest.raises(InvalidRequestError):
        check_request(request(max_tokens=2, hands_over_kv=True), ("prefill", "decode"), has_transport=True)
    for asked in (request(max_tokens=1, hands_over_kv=True), request(kv=KV)):
        with pytest.raises(UnsupportedFeatureError, match="moves no"):
            check_request(asked, ("prefill", "decode"), has_transport=False)
