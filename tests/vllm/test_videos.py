"""Videos over vLLM: its servers see the frames that Chiasm chose, and answer as the embedded engine does."""

import asyncio
import base64
import json

import pytest

from chiasm.launch.vllm.process import connection_to
from tests.conditions import until
from tests.e2e.served import ask
from tests.vllm.crews import MARKS
from tests.vllm.gateways import BLUE, RED, assert_same, gateway

pytest.importorskip("av", reason="the extra video is not installed")
from tests.unit.media.video.clips import clip

pytestmark = MARKS


def data_url(data):
    return "data:video/mp4;base64," + base64.b64encode(data).decode()


LONG, SHORT = data_url(clip(48, size=(192, 128))), data_url(clip(31, fps=12))
TURNED, SINGLE = data_url(clip(40, size=(320, 180), degrees=90)), data_url(clip(1))
QUESTION = "What color is the shape?"
CASES = {
    "one": ((LONG, QUESTION), {}),
    "frames asked for": ((LONG, QUESTION), {"mm_processor_kwargs": {"num_frames": 7}}),
    "more often": ((SHORT, QUESTION), {"mm_processor_kwargs": {"fps": 5.0}}),
    "turned": ((TURNED, QUESTION), {}),
    "a single frame": ((SINGLE, QUESTION), {}),
    "with pictures, and twice": (("First:", LONG, RED, SHORT, BLUE, LONG, QUESTION), {}),
}


def test_a_whole_server_answers_about_videos_as_the_embedded_engine_does(aggregated, embedded):
    for parts, fields in CASES.values():
        expected = embedded.logprobs(parts, **fields)
        for _ in range(2):  # cold and warm
            assert_same(aggregated.logprobs(parts, **fields), expected)


def test_a_receipt_says_what_decoding_took(aggregated):
    receipt = aggregated.receipt((data_url(clip(37)), QUESTION))
    assert receipt["stages_s"]["decode_media"] > 0
    assert receipt["num_visual_tokens"] > 0
    asyncio.run(until(lambda: aggregated.backend._spool.num_files == 0))  # frames are held for a call, and no longer


def test_a_broken_video_is_refused_before_a_server_sees_it(aggregated):
    data = clip(48)
    status, body = aggregated.chat((RED, data_url(data[: len(data) // 2]), QUESTION))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["code"].startswith("media_")
    assert "Media item 1" in body["error"]["message"]


def test_a_video_that_takes_more_than_servers_reserved_is_refused_with_what_to_do(aggregated):
    many = data_url(clip(600))  # 300 frames of patches; the largest picture takes 256
    status, body = aggregated.chat((many, QUESTION), mm_processor_kwargs={"num_frames": 600})
    assert (status, body["error"]["code"]) == (413, "media_too_large"), body
    assert "num_frames" in body["error"]["hint"]


def test_an_engine_decodes_no_video_itself(aggregated):
    """Whoever reaches it, with its key."""
    process = aggregated.backend.supervisor._processes["worker-0"]
    key = aggregated.backend._crew._token
    connection = connection_to(process.address, 120)
    try:
        body = {"model": "tiny_vlm", "messages": ask(SHORT, QUESTION), "max_tokens": 1}
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 422
        assert b"media_unsupported" in answer.read()
    finally:
        connection.close()


def test_encoders_hand_videos_over(split, embedded):
    for parts, fields in CASES.values():
        expected = embedded.logprobs(parts, **fields)
        for _ in range(2):
            assert_same(split.started.logprobs(parts, **fields), expected)
    assert split.log.sees_encoding_by("encode-0", after=0)
    assert split.log.encoded_by("prefill-0") == 0, "the tower of the server that prefills never ran"


def test_listed_servers_take_frames_in_the_call_when_their_entries_say_so(split, embedded, tmp_path):
    status, body = split.attached.chat((SHORT, QUESTION))
    assert (status, body["error"]["code"]) == (400, "media_unsupported")
    assert "not known to take frames" in body["error"]["message"]
    assert "videos = true" in body["error"]["hint"]
    path = tmp_path / "workers.toml"
    processes = split.started.backend.supervisor._processes
    for name, roles in (("encode-0", '["encode"]'), ("prefill-0", '["prefill", "decode"]')):
        with path.open("a") as file:
            file.write(f'[[workers]]\nname = "{name}"\nurl = "{processes[name].address}"\nroles = {roles}\n')
            file.write("videos = true\n")
    with gateway(*split._own, f"vllm.workers_file={path}", "routing.local_encode=never") as attached:
        parts = ("Now:", data_url(clip(33)), QUESTION)
        assert_same(attached.logprobs(parts), embedded.logprobs(parts))
