"""Every topology, with real worker processes, gives the tokens of the server that has everything in one process."""

import base64
import hashlib
import json
import os
import secrets
import signal
import struct
import time
import urllib.request
from pathlib import Path
from statistics import median

import openai
import pytest

from chiasm.launch.local import background_server
from chiasm.settings import resolve
from chiasm.settings.slices import slice_of_thread_s
from tests.e2e.served import ask, fresh, picture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RED, BLUE, GREEN = picture("red", shift=3), picture("blue", "square", shift=3), picture("green", shift=5)
QUESTION = "What color is the shape in image 1?"
PROMPTS = {
    "text": ("Hello, who are you?",),
    "one": (RED, "What color is the shape?"),
    "same again": (RED, "What shape is in the image?"),
    "two": (RED, BLUE, QUESTION),
    "repeats": (BLUE, RED, BLUE, BLUE, QUESTION),
    "interleaved": ("First:", GREEN, "then:", RED, "and last:", BLUE, QUESTION),
    "six": (*(picture("yellow", "square", shift=number) for number in range(5)), RED, QUESTION),
}
ADMIN = ["gateway.admin_keys=['operator']"]
TOPOLOGIES = {
    "agg": ["routing.topology=agg"],
    "e-pd": ["routing.topology=e-pd", "engine.max_step_tokens=64"],
    "e-pd, raw": ["routing.topology=e-pd", "routing.forward=raw"],
    "e-pd over tcp": [
        "routing.topology=e-pd",
        "transfer.connector=tcp",
        "routing.local_encode=never",
        "routing.overlap=always",
    ],
    "e-p-d": [
        "routing.topology=e-p-d",
        "routing.overlap=always",
        "engine.max_step_tokens=64",
        "media.niceness=3",
        "routing.worker_niceness=2",
        "engine.short_slice_s=0.0003",
    ],
    "auto": ["routing.topology=auto"],
}


def client_of(server):
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=120)


def tokens(client, parts, **options):
    """The answer's tokens, greedy, as bytes."""
    made = client.chat.completions.create(
        model="tiny_vlm", messages=ask(*parts), temperature=0, max_tokens=24, logprobs=True, **options
    )
    return [tuple(entry.bytes) for entry in made.choices[0].logprobs.content]


def tokens_or_code(client, parts):
    try:
        return tokens(client, parts)
    except openai.APIStatusError as error:
        return json.loads(error.response.text)["error"]["code"]


def receipt_of(client, parts):
    made = client.chat.completions.create(
        model="tiny_vlm", messages=ask(*parts), temperature=0, max_tokens=4, extra_body={"chiasm": {"receipt": True}}
    )
    return made.model_extra["chiasm"]["receipt"]


def counters(server):
    """What workers counted when the gateway last looked at them, which may be before the last answer."""
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=30) as response:
        lines = [line.split() for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if name.startswith("chiasm_worker_")}


def until_idle(server):
    deadline_s = time.monotonic() + 60
    while True:
        seen = counters(server)
        if not any(
            seen[f"chiasm_worker_{name}"] for name in ("running", "waiting", "open_requests", "held_embeddings")
        ):
            return
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.1)


@pytest.fixture(scope="module", params=TOPOLOGIES)
def fleet(request):
    settings = resolve(environment={}, overrides=[*ADMIN, "gateway.port=0", *TOPOLOGIES[request.param]]).settings
    with background_server(settings, lambda what, share: None) as server:
        yield request.param, server


@pytest.fixture(scope="module")
def expected(served):
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        return {name: tokens(client, parts) for name, parts in PROMPTS.items()}


def test_tokens_are_those_of_one_process_cold_and_warm(fleet, expected):
    name, server = fleet
    with client_of(server) as client:
        for _ in range(2):
            assert {prompt: tokens(client, parts) for prompt, parts in PROMPTS.items()} == expected
        until_idle(server)
        if name == "e-pd over tcp":
            until(lambda: counters(server)["chiasm_worker_taken_tensors_total"] > 0)


def test_videos_give_the_tokens_of_one_process_and_are_decoded_once(fleet, served):
    pytest.importorskip("av", reason="the extra video is not installed")
    from tests.unit.media.video.clips import clip

    name, server = fleet
    new = secrets.token_bytes(8)  # in a box that decoders skip: videos that no cache has seen
    box = struct.pack(">I4s", 8 + len(new), b"free") + new
    made = {number: "data:video/mp4;base64," + base64.b64encode(clip(number) + box).decode() for number in (48, 31)}
    parts = ("First:", made[48], RED, made[31], "What color is the shape?")
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        wanted = tokens(client, parts)
    work = {"decode_media", "prepare", "encode"}
    with client_of(server) as client:
        first = receipt_of(client, parts)
        assert [tokens(client, parts) for _ in range(2)] == [wanted] * 2
        again = receipt_of(client, parts)
    assert work <= set(first["stages_s"]), name
    assert not work & set(again["stages_s"]), name


def test_the_receipt_says_which_way_a_request_went(fleet):
    name, server = fleet
    shown = fresh("green", "square")
    with client_of(server) as client:
        receipt = receipt_of(client, (shown, QUESTION))
    route = receipt["route"]
    stages = {attempt["stage"]: attempt["worker"] for attempt in route["attempts"]}
    assert all(attempt["outcome"] == "ok" for attempt in route["attempts"])
    if name.startswith("e-p"):
        assert stages["encode"] == "encode-0"
        assert stages["prefill"] == "prefill-0"
        assert receipt["stages_s"]["encode"] > 0
    if name == "e-p-d":
        assert stages["decode"] == "decode-0"
        assert receipt["stages_s"]["kv_transfer"] > 0
    total_s = sum(receipt["stages_s"].values()) + receipt["unaccounted_s"]
    assert total_s == pytest.approx(receipt["ttft_s"])


def test_little_of_the_time_to_the_first_token_is_unaccounted_for(fleet):
    _, server = fleet
    with client_of(server) as client:
        receipts = [receipt_of(client, (f"What is {number} and {number}?",)) for number in range(20)]
    assert median(one["unaccounted_s"] / one["ttft_s"] for one in receipts) < 0.03


def test_prompts_are_computed_while_later_pictures_are_encoded(fleet, served):
    name, server = fleet
    if name not in ("e-pd over tcp", "e-p-d"):
        pytest.skip("its requests wait for all their pictures")
    with client_of(server) as client, client_of(served) as other:
        for _ in range(20):  # how the two stages meet is the machine's affair: until they do
            shown = [fresh("red", "square") for _ in range(6)]
            receipt = receipt_of(client, (*shown, QUESTION))
            total_s = sum(receipt["stages_s"].values()) + receipt["unaccounted_s"]
            assert total_s == pytest.approx(receipt["ttft_s"])
            if overlapping(receipt["spans"], "encode", "prefill"):
                break
        else:
            raise AssertionError("no prompt was computed ahead of its pictures")
        assert tokens(client, (*shown, QUESTION)) == tokens(other, (*shown, QUESTION))


def overlapping(spans, *stages):
    """Whether two stages were at work at one time."""
    first, second = ([one for one in spans if one["stage"] == stage] for stage in stages)
    return any(a["start_s"] < b["end_s"] and b["start_s"] < a["end_s"] for a in first for b in second)


def deleted(server, path):
    headers = {"Authorization": "Bearer operator"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server.address}{path}", headers=headers, method="DELETE"), timeout=60
    ) as response:
        report = json.loads(response.read())
    assert report["complete"]
    return {one["worker"]: one for one in report["workers"]}


def test_a_deleted_picture_is_gone_from_every_process_and_is_a_new_one_after_that(fleet):
    _, server = fleet
    shown = fresh("yellow")
    identity = hashlib.sha256(base64.b64decode(shown.partition(",")[2])).hexdigest()
    with client_of(server) as client:
        asked = (shown, "Is there a circle or a square in this picture, and of what color is it?")
        first = tokens(client, asked)
        assert tokens(client, asked) == first
        until_idle(server)
        report = deleted(server, f"/admin/media/{identity}")
        assert set(report) == {"router", *server._backend.supervisor.pids}
        assert report["router"]["num_known"] > 0
        for kind in ("num_embeddings", "num_blocks"):
            assert sum(one[kind] + one["num_pending"] for one in report.values()) > 0, report
        until(lambda: not any(found(deleted(server, f"/admin/media/{identity}"))))
        assert receipt_of(client, asked)["stages_s"]["encode"] > 0
        assert tokens(client, asked) == first
        deleted(server, "/admin/tenants/anonymous/cache")
        until(lambda: counters(server)["chiasm_worker_cached_embeddings"] == 0)


def found(report):
    """All that a deletion still met."""
    kinds = ("num_embeddings", "num_offers", "num_blocks", "num_known", "num_pending")
    return [one[kind] for one in report.values() for kind in kinds]


def until(condition):
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.1)


def test_workers_step_back_and_encoders_further(fleet):
    name, server = fleet
    if name != "e-p-d":
        pytest.skip("one topology will do")
    pids = server._backend.supervisor.pids
    found = {worker: os.getpriority(os.PRIO_PROCESS, pid) for worker, pid in pids.items()}
    own = os.getpriority(os.PRIO_PROCESS, 0)  # of whoever runs the tests: nobody steps forward
    assert found == {"encode-0": max(own, 5), "prefill-0": max(own, 2), "decode-0": max(own, 2)}


@pytest.mark.skipif(slice_of_thread_s() is None, reason="this system tells nobody their slices")
def test_threads_that_texts_wait_for_have_short_slices_and_encoders_do_not(fleet):
    name, server = fleet
    if name != "e-p-d":
        pytest.skip("one topology will do")
    for worker, pid in server._backend.supervisor.pids.items():
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        found = [slice_of_thread_s(thread) for thread in threads]
        assert found.count(0.0006) == (0 if worker == "encode-0" else 1), "the engine's thread, where texts wait for it"
        short = {thread for thread, slice_s in zip(threads, found, strict=True) if slice_s == 0.0003}
        assert pid in short
        assert len(short) <= (
            1 if worker == "encode-0" else 3
        )  # the event loop, and where prompts are planned two more


def test_workers_that_are_killed_come_back_and_no_request_is_lost(fleet):
    name, server = fleet
    if name != "e-p-d":
        pytest.skip("one topology will do: starting again takes time")
    pids = server._backend.supervisor.pids
    with client_of(server) as client:
        before = tokens(client, (GREEN, QUESTION))
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        deadline_s = time.monotonic() + 240
        while (outcome := tokens_or_code(client, (GREEN, QUESTION))) != before:
            assert outcome in ("engine_dead", "overloaded", "embedding_unavailable")
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
    until(lambda: set(server._backend.supervisor.pids) == set(pids))  # who encoded may not be the encoder
