"""What vLLM is sent."""

import base64
import json
from pathlib import Path

import msgspec
import pytest

from chiasm.errors import EngineError, InvalidRequestError, MediaFetchError, UnsupportedMediaError
from chiasm.protocol.generation import GenerateRequest, SamplingParams, TextPrompt, TokensPrompt
from chiasm.protocol.media import SpoolSource, VideoSample
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.vllm.handles import handles_of
from chiasm.routing.vllm.kv_register import KvPlace
from chiasm.routing.vllm.requests import CallWriter
from chiasm.routing.vllm.versions.v0_32 import Version032
from tests.unit.routing.vllm.served import chat, model, picture

VERSION = Version032()
RED, BLUE = picture("red"), picture("blue", 32)


def writer(spool=None, **fields):
    return CallWriter(model(**fields), "served", VERSION, spool)


def body_of(request, **fields):
    call = writer(**fields).generate(request)
    return call.path, json.loads(call.body)


def encoded(*items, extra=""):
    """The items with handles to what an encoder said of them."""
    entries = {
        item.identity: {
            "item_indices": [place],
            "metadata": {"image_grid_thw": [1, item.height // 16, item.width // 16]},
        }
        | ({"peer": extra} if extra else {})
        for place, item in enumerate(items)
    }
    body = json.dumps({"ec_transfer_params": entries}).encode()
    handles = handles_of(VERSION.described(body), EncodeRequest(request_id="e", items=items), model(), 60.0)
    return tuple(msgspec.structs.replace(item, source=handle) for item, handle in zip(items, handles, strict=True))


def test_what_other_servers_have_other_defaults_for_is_always_said():
    path, body = body_of(chat("hello"))
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert body["model"] == "served"
    said = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n")}
    assert said == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1}
    assert body["stream_options"] == {"include_usage": True}
    assert not {"max_tokens", "seed", "stop", "ec_transfer_params", "kv_transfer_params", "chiasm"} & set(body)


def test_sampling_goes_over_as_it_is():
    fields = {"temperature": 0.5, "max_tokens": 7, "stop": ("a",), "logit_bias": {3: 1.5}, "seed": 4, "min_tokens": 2}
    _, body = body_of(chat("x", sampling=fields | {"num_top_logprobs": 2}, stream=False))
    assert body["temperature"] == 0.5
    assert (body["max_tokens"], body["stop"], body["logit_bias"], body["seed"]) == (7, ["a"], {"3": 1.5}, 4)
    assert (body["logprobs"], body["top_logprobs"], body["min_tokens"]) == (True, 2, 2)
    assert "stream_options" not in body


def test_what_one_caller_left_in_caches_is_found_by_no_other():
    bodies = [body_of(chat(0, items=(RED,), cache_salt=salt))[1] for salt in ("", "a", "b")]
    assert "cache_salt" not in bodies[0]
    assert [body["cache_salt"] for body in bodies[1:]] == ["a", "b"]
    uuids = [body["messages"][0]["content"][0]["uuid"] for body in bodies]
    assert uuids[0] == RED.identity
    assert len(set(uuids)) == 3
    encode = EncodeRequest(request_id="e", items=(RED,), cache_salt="a")
    sent = json.loads(writer().encode(encode).body)["messages"][0]["content"][0]["uuid"]
    assert sent == uuids[1]
    entries = {sent: {"item_indices": [0], "metadata": {"image_grid_thw": [1, 4, 4]}}}
    described = VERSION.described(json.dumps({"ec_transfer_params": entries}).encode())
    (handle,) = handles_of(described, encode, model(), 60.0)
    assert handle.metadata.identity == RED.identity
    assert VERSION.reference(handle)["uuid"] == sent
    with pytest.raises(EngineError, match="another name"):
        handles_of(described, msgspec.structs.replace(encode, cache_salt="b"), model(), 60.0)


def test_several_greedy_choices_are_asked_for_in_a_way_that_vllm_does_not_refuse():
    _, body = body_of(chat("x", sampling={"temperature": 0, "n": 3}))
    assert (body["temperature"], body["top_k"], body["n"]) == (1.0, 1, 3)


def test_pictures_keep_their_places_and_their_identity_is_their_uuid():
    _, body = body_of(chat("a", 1, "b", 0, items=(RED, BLUE)))
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text", "image_url"]
    assert content[1]["uuid"] == BLUE.identity
    kind, data = content[1]["image_url"]["url"].split(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data) == b"blue"


def test_pictures_in_the_spool_are_a_name_in_a_folder_that_the_server_may_read():
    item = picture(source=SpoolSource("abc", 3))
    _, body = body_of(chat(0, items=(item,)), spool=Path("/dev/shm/spool"))
    assert body["messages"][0]["content"][0]["image_url"] == {"url": "file:///dev/shm/spool/abc"}
    with pytest.raises(MediaFetchError):
        body_of(chat(0, items=(item,)))


def test_encoded_pictures_are_metadata_and_what_the_encoder_said_of_them():
    items = encoded(RED, BLUE, extra="there")
    _, body = body_of(chat(1, "x", 0, 1, items=items))
    content = body["messages"][0]["content"]
    assert content[0] == {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 2, 2]}, "uuid": BLUE.identity}
    assert body["ec_transfer_params"] == {
        BLUE.identity: {"item_indices": [0, 2], "metadata": {"image_grid_thw": [1, 2, 2]}, "peer": "there"},
        RED.identity: {"item_indices": [1], "metadata": {"image_grid_thw": [1, 4, 4]}, "peer": "there"},
    }


def test_who_takes_keys_and_values_over_is_told_of_no_embeddings():
    wanted = VERSION.kv_wanted("r")
    assert (wanted["do_remote_decode"], wanted["do_remote_prefill"]) == (True, False)
    _, body = body_of(chat(0, items=encoded(RED), hands_over_kv=True, stream=False))
    assert body["kv_transfer_params"]["do_remote_decode"] is True
    assert "ec_transfer_params" in body
    params = {"do_remote_prefill": True, "remote_request_id": "q", "remote_block_ids": [[1, 2]]}
    metadata = kv_metadata_of(chat(0, items=(RED,)))
    handle = VERSION.kv_offered(params, metadata)
    _, body = body_of(chat(0, items=encoded(RED), kv=handle))
    assert body["kv_transfer_params"] == params
    assert "ec_transfer_params" not in body
    assert VERSION.kv_offered(None, metadata) is None
    assert VERSION.kv_offered({"do_remote_prefill": False}, metadata) is None


def test_keys_and_values_that_mooncake_keeps_are_found_by_the_calls_name_and_the_servers_register():
    """As the decoding side of vLLM 0.32's MooncakeConnector reads it."""
    _, body = body_of(chat("x", hands_over_kv=True, stream=False))
    assert body["kv_transfer_params"]["transfer_id"] == "r"
    handle = VERSION.kv_registered("r", KvPlace("http://a:8998", "engine"), kv_metadata_of(chat("x")))
    _, body = body_of(chat("x", kv=handle))
    assert body["kv_transfer_params"] == {
        "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "r",
        "remote_bootstrap_addr": "http://a:8998", "remote_engine_id": "engine",
    }  # fmt: skip


def test_a_prompt_whose_answer_would_end_with_its_first_token_is_kept_all_the_same():
    """vLLM 0.32's MooncakeConnector keeps what ended by its length, and nothing else."""
    sampling = {"max_tokens": 1, "stop": ("a",), "stop_token_ids": (7,)}
    _, body = body_of(chat("x", hands_over_kv=True, stream=False, sampling=sampling))
    assert (body["ignore_eos"], body["max_tokens"]) == (True, 1)
    assert not {"stop", "stop_token_ids"} & set(body)
    _, body = body_of(chat("x", sampling=sampling))
    assert (body["ignore_eos"], body["stop"], body["stop_token_ids"]) == (False, ["a"], [7])


def kv_metadata_of(request):
    from chiasm.routing.vllm.handles import kv_metadata

    metadata = kv_metadata(model(), 21, request)
    assert metadata.shape == (3, 2, 2, 21, 4)
    return metadata


def test_texts_and_tokens_go_to_the_other_call():
    text = GenerateRequest(request_id="r", prompt=TextPrompt("once"), sampling=SamplingParams(num_top_logprobs=0))
    path, body = body_of(text)
    assert (path, body["prompt"], body["logprobs"]) == ("/v1/completions", "once", 0)
    _, body = body_of(GenerateRequest(request_id="r", prompt=TokensPrompt((4, 5))))
    assert body["prompt"] == [4, 5]
    assert "logprobs" not in body


def test_a_text_that_spells_a_special_token_is_refused_unless_the_operator_lets_it_pass():
    known = {"special_tokens": ("<|im_end|>", "<|image_pad|>")}
    for request in (
        chat("a <|image_pad|> b"),
        GenerateRequest(request_id="r", prompt=TextPrompt("<|im_end|>")),
    ):
        with pytest.raises(InvalidRequestError, match="special token"):
            body_of(request, **known)
        body_of(request, **known, refuses_special_tokens=False)
    body_of(chat("<|im_endless|>"), **known)


def test_an_encode_call_is_pictures_only_and_never_a_stream():
    call = writer().encode(EncodeRequest(request_id="e", items=(RED, BLUE)))
    body = json.loads(call.body)
    assert body["stream"] is False
    assert [part["uuid"] for part in body["messages"][0]["content"]] == [RED.identity, BLUE.identity]
    assert "max_tokens" not in body


def test_what_cannot_be_said_is_a_request_error():
    with pytest.raises(InvalidRequestError, match="names item 3 of 1"):
        body_of(chat(3, items=(RED,)))
    with pytest.raises(InvalidRequestError, match="not JSON"):
        body_of(chat("x", sampling={"json_schema": "{"}))
    with pytest.raises(InvalidRequestError):
        body_of(chat("\ud800"))


@pytest.mark.parametrize("fields", [{}, {"preparer": None}])
def test_videos_are_refused_with_their_item_where_the_model_takes_none(fields):
    sample = VideoSample(num_frames=8, fps=24.0, indices=(0, 4))
    shown = msgspec.structs.replace(picture(), kind="video", video=sample)
    with pytest.raises(UnsupportedMediaError, match="videos") as caught:
        model(**fields).num_visual_tokens(chat(0, 1, items=(picture(), shown)))
    assert caught.value.item == 1
    assert "frames of it as pictures" in caught.value.hint
