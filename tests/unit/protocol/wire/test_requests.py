"""The form of requests, which other servers read, and what a worker answers to those that are wrong."""

import base64
import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.errors import InvalidRequestError, RequestError
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    ItemPart,
    Message,
    SamplingParams,
    TextPart,
    TokensPrompt,
)
from chiasm.protocol.kv import KvHandle, KvMetadata
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata, InlineSource, MediaItem, SpoolSource, VideoSample
from chiasm.protocol.wire import CHAT_PATH, TEXT_PATH, decode_request, encode_request
from chiasm.protocol.worker import EncodeRequest
from tests.unit.protocol.wire import strategies as wire

IDENTITY = "ab" * 32
HANDLE = EmbeddingHandle(
    connector="shm",
    key="k",
    address="here",
    metadata=EmbeddingMetadata(
        identity=IDENTITY,
        num_embeddings=64,
        shape=(64, 256),
        dtype="float32",
        grid_thw=(1, 16, 16),
        merge_size=2,
        model_revision="m",
        processor_revision="p",
        checksum="c",
    ),
)

KV = KvHandle(
    connector="shm",
    key="kv-1",
    metadata=KvMetadata(
        num_tokens=5, shape=(2, 2, 1, 5, 8), dtype="float32", model_revision="m", prompt_hash=IDENTITY, checksum="c"
    ),
    expires_at_s=1.0,
)


def item(source, identity=IDENTITY):
    return MediaItem(identity=identity, format="png", width=8, height=6, source=source)


def chat(*parts, items=(), **fields):
    return GenerateRequest(
        request_id="r", prompt=ChatPrompt((Message("user", parts),)), items=items, timeout_s=9.0, **fields
    )


def body_of(request):
    return json.loads(encode_request(request, "m").body)


def test_an_encoded_item_is_metadata_and_a_handle_in_vllms_form():
    body = body_of(chat(ItemPart(0), TextPart("what?"), items=(item(HANDLE),)))
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 16, 16]}, "uuid": IDENTITY},
                {"type": "text", "text": "what?"},
            ],
        }
    ]
    assert list(body["ec_transfer_params"]) == [IDENTITY]
    entry = body["ec_transfer_params"][IDENTITY]
    assert entry["item_indices"] == [0]
    assert entry["metadata"] == {"image_grid_thw": [1, 16, 16]}
    assert entry["handle"]["key"] == "k"
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"] is True
    assert "kv_transfer_params" not in body


def test_a_picture_is_a_data_url_named_by_its_content():
    body = body_of(EncodeRequest(request_id="r", items=(item(InlineSource(b"png!")),)))
    url = "data:image/png;base64," + base64.b64encode(b"png!").decode()
    assert body["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": url}, "uuid": IDENTITY}]
    assert body["stream"] is False
    assert "source" not in body["chiasm"]["items"][0], "its bytes are sent once"


def test_the_base64_of_pictures_is_not_copied_into_the_body():
    pictures = (item(InlineSource(b"one!")), item(InlineSource(b"two!"), "cd" * 32))
    call = encode_request(chat(ItemPart(1), ItemPart(0), ItemPart(1), items=pictures), "m")
    assert call.pieces[1::2] == tuple(base64.b64encode(data) for data in (b"two!", b"one!", b"two!"))
    assert decode_request(call.path, call.body).items == pictures


def test_a_spooled_picture_is_a_name():
    body = body_of(chat(ItemPart(0), items=(item(SpoolSource("0f-3a", 1234)),)))
    assert body["messages"][0]["content"][0]["image_url"] == {"url": "chiasm-spool:1234/0f-3a"}


def video(source):
    sample = VideoSample(num_frames=48, fps=24.0, indices=(0, 24))
    return msgspec.structs.replace(item(source), kind="video", format="mp4", video=sample)


def test_a_video_is_said_in_vllms_form_with_what_was_sampled():
    body = body_of(chat(ItemPart(0), items=(video(SpoolSource("0f-3a", 1234)),)))
    [part] = body["messages"][0]["content"]
    assert part == {"type": "video_url", "video_url": {"url": "chiasm-spool:1234/0f-3a"}, "uuid": IDENTITY}
    assert body["chiasm"]["items"][0]["video"] == {"num_frames": 48, "fps": 24.0, "indices": [0, 24]}
    metadata = msgspec.structs.replace(HANDLE.metadata, kind="video", grid_thw=(2, 16, 16), second_per_grid_s=1.5)
    body = body_of(chat(ItemPart(0), items=(video(msgspec.structs.replace(HANDLE, metadata=metadata)),)))
    told = {"video_grid_thw": [2, 16, 16], "second_per_grid_ts": 1.5}
    assert body["messages"][0]["content"][0] == {"type": "video_embeds", "video_embeds": told, "uuid": IDENTITY}
    assert body["ec_transfer_params"][IDENTITY]["metadata"] == told


@pytest.mark.parametrize("changed", [{"kind": "image"}, {"video": None}, {"kind": "image", "video": None}])
def test_part_and_description_are_of_one_kind(changed):
    body = body_of(chat(ItemPart(0), items=(video(InlineSource(b"mp4!")),)))
    described = body["chiasm"]["items"][0]
    for name, value in changed.items():
        described[name] = value
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(CHAT_PATH, json.dumps(body).encode())
    assert caught.value.item == 0


def test_a_single_text_is_a_string_since_templates_join_parts_with_line_breaks():
    assert body_of(chat(TextPart("hello")))["messages"] == [{"role": "user", "content": "hello"}]


def test_what_other_servers_have_other_defaults_for_is_always_said():
    assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"} <= body_of(chat()).keys()
    text = body_of(GenerateRequest(request_id="r", prompt=TokensPrompt((1, 2))))
    assert text["max_tokens"] is None, "16 otherwise"
    assert text["prompt"] == [1, 2]


def test_a_prefill_asks_to_keep_keys_and_values_and_a_decode_takes_them():
    asked = body_of(chat(TextPart("x"), hands_over_kv=True))["kv_transfer_params"]
    assert (asked["do_remote_decode"], asked["do_remote_prefill"]) == (True, False)
    taken = body_of(chat(TextPart("x"), kv=KV))["kv_transfer_params"]
    assert (taken["do_remote_decode"], taken["do_remote_prefill"]) == (False, True)
    assert taken["handle"]["key"] == "kv-1"


def test_a_schema_goes_as_it_is():
    schema = '{"type": "object",  "properties": {}}'
    raw = encode_request(chat(TextPart("x"), sampling=SamplingParams(json_schema=schema)), "m").body
    assert schema.encode() in raw
    assert json.loads(raw)["response_format"]["type"] == "json_schema"


def test_a_schema_that_would_break_the_body_is_not_sent():
    with pytest.raises(InvalidRequestError):
        encode_request(chat(TextPart("x"), sampling=SamplingParams(json_schema='{"a": 1}, "stream": {')), "m")


def test_a_place_without_an_item_is_not_sent():
    with pytest.raises(InvalidRequestError):
        encode_request(chat(ItemPart(1), items=(item(HANDLE),)), "m")


def changed(change, request=None):
    """The body of a request with one encoded and one raw picture, after `change` had it."""
    raw = item(InlineSource(b"png!"), "cd" * 32)
    body = body_of(request or chat(ItemPart(0), ItemPart(1), items=(item(HANDLE), raw)))
    change(body)
    return json.dumps(body).encode()


def set_grid(body, grid):
    body["messages"][0]["content"][0]["image_embeds"]["image_grid_thw"] = grid


def set_url(body, url):
    body["messages"][0]["content"][1]["image_url"]["url"] = url


WRONG = {
    "another grid": lambda body: set_grid(body, [1, 16, 8]),
    "a huge grid": lambda body: set_grid(body, [1, 100000, 100000]),
    "a nested grid": lambda body: set_grid(body, [[1, 16, 16]]),
    "no handle": lambda body: body.pop("ec_transfer_params"),
    "another identity": lambda body: body["messages"][0]["content"][0].update(uuid="ef" * 32),
    "no identity": lambda body: body["messages"][0]["content"][1].pop("uuid"),
    "an address": lambda body: set_url(body, "http://somewhere/x.png"),
    "a file": lambda body: set_url(body, "file:///etc/passwd"),
    "a path in the spool": lambda body: set_url(body, "chiasm-spool:12/../secret"),
    "a spool without size": lambda body: set_url(body, "chiasm-spool:/abc"),
    "broken base64": lambda body: set_url(body, "data:image/png;base64,@@@"),
    "foreign letters in base64": lambda body: set_url(body, "data:image/png;base64,ä"),
    "a number for an address": lambda body: set_url(body, 5),
    "a lone surrogate": lambda body: set_url(body, "data:\ud800"),
    "too few places": lambda body: body["chiasm"]["places"].pop(),
    "a place of no item": lambda body: body["chiasm"].update(places=[0, 7]),
    "a negative place": lambda body: body["chiasm"].update(places=[0, -1]),
    "no description": lambda body: body.pop("chiasm"),
    "no time": lambda body: body["chiasm"].update(timeout_s=0),
    "a handle of keys and values that is not there": lambda body: body.update(
        kv_transfer_params={"do_remote_prefill": True}
    ),
    "a temperature below zero": lambda body: body.update(temperature=-1),
    "too many choices": lambda body: body.update(n=100000),
    "no messages": lambda body: body.pop("messages"),
    "a role from elsewhere": lambda body: body["messages"][0].update(role="tool"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused(name):
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(CHAT_PATH, changed(WRONG[name]))
    assert "somewhere" not in str(caught.value)
    assert "passwd" not in str(caught.value)


def test_the_request_that_was_changed_above_is_right():
    assert isinstance(decode_request(CHAT_PATH, changed(lambda body: None)), GenerateRequest)


def test_escapes_in_an_address_are_understood():
    url = "data:image\\/png;base64,cG5nIQ=="
    body = changed(lambda fields: set_url(fields, "URL")).replace(b'"URL"', f'"{url}"'.encode())
    assert decode_request(CHAT_PATH, body).items[1].source == InlineSource(b"png!")


@pytest.mark.parametrize("url", [b'"\\q"', b'"\xff\\n"', b'"\xff"', b'"\\ud800"'])
def test_an_address_that_is_no_text_is_refused(url):
    body = changed(lambda fields: set_url(fields, "URL")).replace(b'"URL"', url)
    with pytest.raises(InvalidRequestError):
        decode_request(CHAT_PATH, body)


def test_deep_nesting_is_refused():
    with pytest.raises(InvalidRequestError):
        decode_request(CHAT_PATH, b'{"model":' + b"[" * 100_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(wire.generate_requests(), st.data())
def test_whatever_is_sent_is_a_request_or_a_coded_error(request, data):
    call = encode_request(request, "m")
    fields = json.loads(call.body)
    target = fields
    for _ in range(data.draw(st.integers(0, 4))):  # walk down, then put something else there
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(target[key], dict | list) or not target[key]:
            break
        target = target[key]
    keys = list(target) if isinstance(target, dict) else list(range(len(target)))
    target[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    with suppress(RequestError):
        assert decode_request(call.path, json.dumps(fields).encode()).timeout_s > 0


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([CHAT_PATH, TEXT_PATH]))
def test_noise_is_refused(noise, path):
    with pytest.raises(InvalidRequestError):
        decode_request(path, noise)
