"""A vLLM server as a worker, where the server is a script: what it says at the wrong moment, and what becomes of it."""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager

import pytest

from chiasm.errors import (
    ChiasmError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    EngineStepError,
    HandleExpiredError,
    MediaTooLargeError,
)
from chiasm.protocol.generation import RequestFinished, TokenEvent
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.vllm.worker import VllmOptions, VllmWorker
from tests.unit.routing.vllm.served import chat, model, picture

MODELS = {
    "data": [
        {"id": "adapter", "parent": "base", "max_model_len": None},
        {"id": "base", "parent": None, "max_model_len": 512},
    ]
}
METRICS = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 7.0\n'
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
WORD = {"choices": [{"index": 0, "delta": {"content": "red"}, "finish_reason": None, "token_ids": [7]}]}
END = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop", "token_ids": [2]}]}
COUNTS = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
FAILED = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
DEAD = {"error": {"message": "EngineCore encountered an issue.", "type": "x", "param": None, "code": 500}}


def events(*bodies):
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies) + b"data: [DONE]\n\n"


class Script:
    """Answers by path, the same each time until changed, or of a list one after the other; remembers heads."""

    def __init__(self):
        self.answers = {
            "/version": (200, json.dumps({"version": "0.32.0"})),
            "/v1/models": (200, json.dumps(MODELS)),
            "/health": (200, ""),
            "/metrics": (200, METRICS),
            "/is_paused": (404, '{"detail": "Not Found"}'),
        }
        self.heads = []
        self.gates = {}  # what an answer waits for, by path

    async def serve(self, reader, writer):
        while head := (await reader.readuntil(b"\r\n\r\n")).decode() if not reader.at_eof() else "":
            self.heads.append(head)
            length = next(int(line[16:]) for line in head.split("\r\n") if line.startswith("Content-Length: "))
            await reader.readexactly(length)
            if gate := self.gates.get(head.split(" ")[1]):
                await gate.wait()
            answer = self.answers[head.split(" ")[1]]
            status, body = answer.pop(0) if isinstance(answer, list) else answer
            data = body if isinstance(body, bytes) else body.encode()
            writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)
            await writer.drain()


class Gate(asyncio.Event):
    """For `Script.gates`; says when an answer waits at it."""

    def __init__(self):
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self):
        self.reached.set()
        return await super().wait()


@asynccontextmanager
async def scripted(tmp_path):
    script, path = Script(), str(tmp_path / "v.sock")

    async def serve(reader, writer):
        try:
            await script.serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield script, f"unix:{path}"


@asynccontextmanager
async def connected(tmp_path, **options):
    async with scripted(tmp_path) as (script, address):
        known = {"name": "w", "roles": ("encode", "prefill", "decode")}
        worker = await VllmWorker.connect(address, model(), VllmOptions(**(known | options)))
        yield script, worker
        await worker.aclose()


async def outcome(worker, request):
    """The events of a request, and the error that it ended with."""
    found = []
    try:
        async with aclosing(worker.generate(request)) as answer:
            async for event in answer:
                found.append(event)  # noqa: PERF401 - those before an error count
    except ChiasmError as error:
        return found, error
    return found, None


async def test_a_server_says_what_it_serves_and_what_it_has_to_do(tmp_path):
    async with connected(tmp_path, token="secret", data_parallel_rank=1) as (script, worker):
        assert (worker.info.model, worker.info.max_model_tokens, worker.info.family) == ("m", 512, "qwen3_vl")
        assert not worker.info.encodes_for_others
        assert worker.stats().num_running == 7
        assert all("Authorization: Bearer secret" in head for head in script.heads)
        assert all("X-data-parallel-rank: 1" in head for head in script.heads)


@pytest.mark.parametrize(
    ("path", "answer", "kind"),
    [
        ("/version", (200, json.dumps({"version": "0.99.0"})), EngineStartError),
        ("/version", (404, "nothing here"), EngineError),
        ("/version", (200, "<html>"), EngineError),
        ("/v1/models", (200, json.dumps({"data": []})), EngineStartError),
        ("/v1/models", (401, "{}"), EngineError),
        ("/health", (503, ""), EngineDeadError),
    ],
)
async def test_who_is_no_vllm_that_we_know_is_not_taken_in(tmp_path, path, answer, kind):
    async with scripted(tmp_path) as (script, address):
        script.answers[path] = answer
        with pytest.raises(kind):
            await VllmWorker.connect(address, model(), VllmOptions(name="w", roles=("encode",)))


async def test_what_a_prefilling_server_keeps_is_found_by_its_register(tmp_path):
    async with scripted(tmp_path) as (script, address):
        script.answers["/query"] = (200, '{"0": {"engine_id": "first", "worker_addr": {}}}')
        script.answers["/v1/chat/completions"] = (200, json.dumps({"choices": [], **{"usage": COUNTS["usage"]}}))
        options = VllmOptions(name="w", roles=("prefill",), kv_register=address)
        worker = await VllmWorker.connect(address, model(), options)
        asked = chat("x", hands_over_kv=True, stream=False)
        (finished,), error = await outcome(worker, asked)
        assert error is None
        told = json.loads(finished.kv.address)
        assert (told["transfer_id"], told["remote_engine_id"]) == ("r", "first")
        assert told["remote_bootstrap_addr"] == address
        script.answers["/query"] = (200, '{"0": {"engine_id": "second", "worker_addr": {}}}')
        await worker.refresh()
        (finished,), _ = await outcome(worker, asked)
        assert json.loads(finished.kv.address)["remote_engine_id"] == "second", "it was started again"
        script.answers["/query"] = (200, "{}")
        with pytest.raises(EngineDeadError, match="not registered"):
            await worker.refresh()
        assert not worker.stats().is_healthy
        assert isinstance((await outcome(worker, asked))[1], EngineDeadError)
        script.answers["/query"] = (200, '{"detail": "Not Found"}')
        with pytest.raises(EngineDeadError, match="no bootstrap server"):
            await worker.refresh()
        await worker.aclose()


async def test_keys_and_values_are_found_while_the_register_is_asked_once_more(tmp_path):
    async with scripted(tmp_path) as (script, address):
        script.answers["/query"] = (200, '{"0": {"engine_id": "first", "worker_addr": {}}}')
        script.answers["/v1/chat/completions"] = (200, json.dumps({"choices": [], **{"usage": COUNTS["usage"]}}))
        options = VllmOptions(name="w", roles=("prefill",), kv_register=address)
        worker = await VllmWorker.connect(address, model(), options)
        script.gates["/query"] = gate = Gate()
        look = asyncio.create_task(worker.refresh())
        await asyncio.wait_for(gate.reached.wait(), 5)
        (finished,), _ = await outcome(worker, chat("x", hands_over_kv=True, stream=False))
        assert json.loads(finished.kv.address)["remote_engine_id"] == "first"
        gate.set()
        await look
        await worker.aclose()


async def test_a_stream_is_events_and_counts(tmp_path):
    async with connected(tmp_path) as (script, worker):
        script.answers["/v1/chat/completions"] = (200, events(ROLE, WORD, END, COUNTS))
        found, error = await outcome(worker, chat("x"))
        assert error is None
        assert isinstance(found[0], TokenEvent)
        assert isinstance(found[-1], RequestFinished)
        assert found[-1].usage.num_output_tokens == 2


@pytest.mark.parametrize(
    ("body", "kind", "num_events"),
    [
        (events(ROLE, FAILED), EngineStepError, 0),
        (events(ROLE, DEAD), EngineDeadError, 0),
        (events(ROLE, WORD, FAILED), EngineStepError, 1),
        (events(ROLE, WORD, END), EngineDeadError, 3),
        (b"", EngineDeadError, 0),
        (b"data: nonsense\n\n", EngineError, 0),
    ],
    ids=["request", "engine", "late", "no counts", "nothing", "nonsense"],
)
async def test_an_error_inside_a_stream_is_the_error_that_it_is(tmp_path, body, kind, num_events):
    async with connected(tmp_path) as (script, worker):
        script.answers["/v1/chat/completions"] = (200, body)
        found, error = await outcome(worker, chat("x"))
        assert type(error) is kind
        assert len(found) == num_events


async def test_a_dead_engine_is_noticed_at_the_next_look_and_forgotten_when_it_is_back(tmp_path):
    async with connected(tmp_path) as (script, worker):
        assert worker.stats().is_healthy
        script.answers["/health"] = (503, "")
        with pytest.raises(EngineDeadError):
            await worker.refresh()
        assert not worker.stats().is_healthy
        script.answers["/health"] = (200, "")
        assert (await worker.refresh()).is_healthy


async def test_a_picture_for_which_the_servers_have_no_room_is_refused_before_it_is_sent(tmp_path):
    async with scripted(tmp_path) as (script, address):
        options = VllmOptions(name="w", roles=("encode", "prefill", "decode"))
        worker = await VllmWorker.connect(address, model(max_picture_embeddings=3), options)
        num_calls = len(script.heads)
        large = picture()  # 4 embeddings
        with pytest.raises(MediaTooLargeError, match="room for 3"):
            await worker.encode(EncodeRequest(request_id="e", items=(large,)))
        assert type((await outcome(worker, chat(0, items=(large,))))[1]) is MediaTooLargeError
        assert len(script.heads) == num_calls
        await worker.aclose()


async def test_an_encoded_picture_is_a_handle_and_a_consumer_that_fails_with_it_is_taken_to_have_missed_it(tmp_path):
    async with connected(tmp_path) as (script, worker):
        said = {picture().identity: {"item_indices": [0], "metadata": {"image_grid_thw": [1, 4, 4]}, "port": 1}}
        script.answers["/v1/chat/completions"] = (200, json.dumps({"choices": [], "ec_transfer_params": said}))
        response = await worker.encode(EncodeRequest(request_id="e", items=(picture(),)))
        assert response.handles[0].metadata.grid_thw == (1, 4, 4)
        assert [span.stage for span in response.spans] == ["encode"]
        script.answers["/v1/chat/completions"] = (500, json.dumps(FAILED))
        with_embedding = chat(0, items=(picture(source=response.handles[0]),))
        assert type((await outcome(worker, with_embedding))[1]) is HandleExpiredError
        assert type((await outcome(worker, chat(0, items=(picture(),))))[1]) is EngineStepError
        script.answers["/v1/chat/completions"] = (200, json.dumps({"choices": [], "ec_transfer_params": None}))
        with pytest.raises(EngineError, match="described 0 embeddings"):
            await worker.encode(EncodeRequest(request_id="e", items=(picture(),)))
