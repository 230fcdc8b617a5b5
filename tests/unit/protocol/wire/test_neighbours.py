"""What another version of the contract writes is read: an older one's as recorded, a newer one's with more fields."""

import json
from pathlib import Path

import msgspec
import pytest

from chiasm.errors import ContractVersionError, OverloadedError
from chiasm.protocol.adapters import AdapterInfo, decode_adapter, decode_load
from chiasm.protocol.contract import CONTRACT_VERSION
from chiasm.protocol.deletion import Deleted, Deletion, decode_deleted, decode_deletion
from chiasm.protocol.generation import ChatPrompt, GenerateRequest, RequestFinished
from chiasm.protocol.wire import (
    CHAT_PATH,
    StreamDecoder,
    decode_encoded,
    decode_fault,
    decode_request,
    decode_supply,
    encode_request,
    encode_supply,
)
from chiasm.protocol.wire.answer_bodies import Answer
from chiasm.protocol.wire.bodies import ChatBody, TextBody
from chiasm.protocol.worker import EncodeRequest, SupplyRequest, WorkerInfo, WorkerStats
from tests.unit.protocol.wire.test_requests import HANDLE, KV

RECORDED = json.loads((Path(__file__).parent / "recorded" / "version_1.json").read_text())
"""Bodies as version 1 wrote them. Never written anew."""

MAPS = {"ec_transfer_params", "logit_bias", "handles", "totals", "schema"}
"""Objects whose names are no fields."""


def of_tomorrow(value, within=None):
    """The same with a field that nobody knows in each object, from a version that is one later."""
    if isinstance(value, list):
        return [of_tomorrow(one) for one in value]
    if not isinstance(value, dict):
        return value
    grown = {name: of_tomorrow(one, name) for name, one in value.items()}
    if within == "chiasm" and "version" in grown:
        grown["version"] = CONTRACT_VERSION + 1
    return grown if within in MAPS else grown | {"of_tomorrow": {"and": ["more"]}}


AGES = {"older": lambda value: value, "newer": of_tomorrow}


@pytest.fixture(params=AGES)
def body(request):
    """From a recording's name to the bytes of its body, in both ages."""
    return lambda name: json.dumps(AGES[request.param](RECORDED[name]["body"])).encode()


def test_a_call_means_the_same(body):
    request = decode_request(CHAT_PATH, body("generate"))
    assert isinstance(request, GenerateRequest)
    assert isinstance(request.prompt, ChatPrompt)
    assert [len(message.parts) for message in request.prompt.messages] == [1, 2]
    assert request.items[0].source == HANDLE
    assert request.kv == KV
    assert request.sampling.logit_bias == {3: 1.5}
    assert (request.cache_salt, request.adapter.name, request.timeout_s) == ("s", "a", 9.0)
    schema = decode_request(RECORDED["generate_schema"]["path"], body("generate_schema"))
    assert json.loads(schema.sampling.json_schema) == {"type": "object"}
    assert schema.hands_over_kv
    encode = decode_request(CHAT_PATH, body("encode"))
    assert isinstance(encode, EncodeRequest)
    assert [item.kind for item in encode.items] == ["image", "video"]


def test_what_is_said_beside_calls_is_read(body):
    assert decode_supply(body("supply")).handles == {0: HANDLE}
    assert decode_deletion(body("deletion")).identity == "ab" * 32
    assert decode_load(body("adapter_load")).directory == "/adapters/a"


def test_what_a_worker_says_of_itself_is_read(body):
    info = msgspec.json.decode(body("info"), type=WorkerInfo)
    assert (info.version, info.name, info.roles) == (1, "local", ("encode", "prefill", "decode"))
    assert msgspec.json.decode(body("stats"), type=WorkerStats).is_healthy


def test_answers_are_read(body):
    assert decode_encoded(body("encoded"), 1).handles == (HANDLE,)
    assert decode_deleted(body("deleted")) == (Deleted(worker="w", num_offers=1),)
    assert isinstance(decode_adapter(body("adapter_info")), AdapterInfo)
    fault = decode_fault(429, body("fault"))
    assert isinstance(fault, OverloadedError)
    assert fault.retry_after_s == 3


@pytest.mark.parametrize("age", AGES)
def test_a_stream_is_read(age):
    blocks = [AGES[age](event) for event in RECORDED["stream"]["events"]]
    decoder = StreamDecoder(1)
    events = decoder.feed(b"".join(b"data: " + json.dumps(block).encode() + b"\n\n" for block in blocks))
    assert decoder.failure is None
    assert events[0].text == "Hi"
    assert isinstance(events[-1], RequestFinished)
    assert events[-1].kv == KV


def test_what_must_be_known_and_is_not_is_refused():
    body = RECORDED["generate"]["body"]
    body = body | {"chiasm": body["chiasm"] | {"version": CONTRACT_VERSION + 1, "requires": ["speculation"]}}
    with pytest.raises(ContractVersionError, match="speculation") as caught:
        decode_request(CHAT_PATH, json.dumps(body).encode())
    assert caught.value.hint == "Upgrade this worker first"


@pytest.mark.parametrize("distance", [-2, 2])
def test_a_call_of_no_neighbour_is_refused(distance):
    body = RECORDED["generate"]["body"]
    body = body | {"chiasm": body["chiasm"] | {"version": CONTRACT_VERSION + distance}}
    with pytest.raises(ContractVersionError):
        decode_request(CHAT_PATH, json.dumps(body).encode())
    with pytest.raises(ContractVersionError):
        decode_supply(json.dumps(RECORDED["supply"]["body"] | {"version": CONTRACT_VERSION + distance}).encode())
    with pytest.raises(ContractVersionError):
        decode_deletion(json.dumps(RECORDED["deletion"]["body"] | {"version": CONTRACT_VERSION + distance}).encode())


@pytest.mark.parametrize("name", ["generate", "generate_schema", "encode"])
def test_an_older_worker_is_asked_in_its_own_words(name):
    recorded = RECORDED[name]
    request = decode_request(recorded["path"], json.dumps(recorded["body"]).encode())
    call = encode_request(request, "m", version=1)
    assert call.path == recorded["path"]
    assert json.loads(call.body) == recorded["body"]


def test_embeddings_are_supplied_to_an_older_worker_in_its_words():
    body = RECORDED["supply"]["body"]
    assert json.loads(encode_supply(decode_supply(json.dumps(body).encode()), version=1).body) == body


@pytest.mark.parametrize(
    "kind", [ChatBody, TextBody, Answer, SupplyRequest, Deletion, WorkerInfo, WorkerStats], ids=lambda one: one.__name__
)
def test_nothing_on_the_wire_refuses_fields_that_it_does_not_know(kind):
    assert [one.cls.__name__ for one in structs_in(msgspec.inspect.type_info(kind)) if one.forbid_unknown_fields] == []


def structs_in(found):
    """All structures that a type consists of."""
    if isinstance(found, msgspec.inspect.StructType):
        yield found
    if isinstance(found, tuple):
        for one in found:
            yield from structs_in(one)
    elif isinstance(found, msgspec.inspect.Field):
        yield from structs_in(found.type)
    elif isinstance(found, msgspec.inspect.Type):
        for name in found.__struct_fields__:
            yield from structs_in(getattr(found, name))


def test_structures_are_found_wherever_they_are():
    names = {one.cls.__name__ for one in structs_in(msgspec.inspect.type_info(ChatBody))}
    assert {"ChatBody", "Extension", "ItemBody", "AdapterRef", "EmbeddingMetadata", "Text", "KvMetadata"} <= names
