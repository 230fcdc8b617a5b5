"""A request's whole life over ASGI, with a scripted worker: one ending, whatever happens."""

import asyncio
import logging

import pytest

from chiasm.errors import EngineDeadError, MediaDecodeError, OverloadedError
from chiasm.gateway import create_app
from chiasm.settings import GatewaySettings
from tests.asgi import Call, call
from tests.fakes import FakeIngest, FakeWorker, fail, hang, say

CHAT = "/v1/chat/completions"


def ask(text="what is this", *urls, **fields):
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls] + [{"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}], **fields}


class Bench:
    def __init__(self, script=None, *, takes_images=True, **settings):
        self.worker = FakeWorker(script, takes_images=takes_images)
        self.ingest = FakeIngest()
        self.app = create_app(self.worker, self.ingest, GatewaySettings(**settings))
        self.gateway = self.app.state.gateway

    async def post(self, body, path=CHAT, **options):
        return await call(self.app, path, body, **options)

    def start(self, body):
        made = Call(self.app, CHAT, body)
        return made, asyncio.create_task(made.run())

    def outcomes(self):
        return {
            sample.labels["outcome"]: sample.value
            for metric in self.gateway.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "chiasm_requests_total"
        }

    def is_idle(self):
        admission = self.gateway.admission
        open_now = (admission.num_open, admission.num_running, self.worker.num_open, self.ingest.num_open)
        return open_now == (0, 0, 0, 0) and not self.gateway.interruptions._open

    def last(self):
        return self.gateway.receipts.latest(1)[0]


async def test_a_whole_response():
    bench = Bench()
    made = await bench.post(ask("a b", "x:1", "x:2"))
    assert made.status == 200
    assert made.json["choices"][0]["message"]["content"] == "a b"
    assert (
        made.headers["x-chiasm-receipt-id"]
        == made.headers["x-request-id"]
        == made.json["id"]
        == bench.last().request_id
    )
    assert [item.source.data for item in bench.worker.requests[0].items] == [b"x:1", b"x:2"]
    assert not bench.worker.requests[0].stream
    assert bench.outcomes() == {"finished": 1}
    assert bench.last().num_items == 2
    assert bench.is_idle()


async def test_a_stream_says_the_same():
    bench = Bench()
    made = await bench.post(ask("a b", stream=True))
    assert made.headers["content-type"].startswith("text/event-stream")
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in made.events[:-1]) == "a b"
    assert made.events[-1] == "[DONE]"
    assert made.is_complete
    assert bench.worker.requests[0].stream
    assert bench.outcomes() == {"finished": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_receipt_in_the_body_is_the_one_that_is_kept(stream):
    bench = Bench()
    made = await bench.post(ask("a", "x:1", stream=stream, chiasm={"receipt": True}))
    body = made.events[-2] if stream else made.json
    receipt = body["chiasm"]["receipt"]
    kept = await call(bench.app, f"/debug/receipts/{receipt['request_id']}")
    assert kept.json == receipt
    assert {"queue", "fetch", "prompt", "prefill"} <= set(receipt["stages_s"])
    assert sum(receipt["stages_s"].values()) + receipt["unaccounted_s"] == pytest.approx(receipt["ttft_s"], abs=1e-9)
    assert receipt["ttft_s"] <= receipt["e2e_s"]


FAILURES = [
    (ask(model="other"), 404, "model_not_found", "/model"),
    (ask(temperature=-1), 400, "invalid_request", "/temperature"),
    (ask(tools=[{"type": "function"}]), 400, "unsupported_feature", "/tools"),
    (ask("x", "bad:1"), 400, "media_undecodable", "/messages/0/content/0/image_url/url"),
    (ask(chiasm={"timeout_s": 1000}), 400, "invalid_request", "/chiasm/timeout_s"),
    ([], 400, "invalid_request", None),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), FAILURES)
@pytest.mark.parametrize("stream", [False, True])
async def test_failures_before_the_first_token_have_their_status(body, status, code, param, stream):
    bench = Bench()
    made = await bench.post({**body, "stream": stream} if isinstance(body, dict) else body)
    assert (made.status, made.error["code"], made.error["param"]) == (status, code, param)
    assert made.headers["content-type"] == "application/json"
    assert bench.outcomes() == {code: 1}
    assert bench.last().outcome == code
    assert bench.last().request_id == made.headers["x-chiasm-receipt-id"]
    assert bench.is_idle()
    assert not bench.worker.requests


async def test_a_model_without_eyes_refuses_before_fetching():
    bench = Bench(takes_images=False)
    made = await bench.post(ask("x", "hang:1"))
    assert (made.status, made.error["code"]) == (400, "media_unsupported")


async def test_engine_failures():
    bench = Bench(fail(EngineDeadError("gone"), after=0))
    for stream in (False, True):
        made = await bench.post(ask(stream=stream))
        assert (made.status, made.error["code"], made.headers["retry-after"]) == (503, "engine_dead", "1")
    bench.worker.script = fail(OverloadedError("full", retry_after_s=9), after=0)
    made = await bench.post(ask())
    assert (made.status, made.headers["retry-after"]) == (429, "9")
    assert bench.outcomes() == {"engine_dead": 2, "overloaded": 1}


async def test_a_failure_inside_a_stream_is_its_last_event():
    bench = Bench(fail(EngineDeadError("gone", hint="wait"), after=1))
    made = await bench.post(ask("a b", stream=True))
    assert made.status == 200
    assert made.events[-2]["error"] == {
        "message": "gone", "type": "server_error", "param": None, "code": "engine_dead", "hint": "wait",
    }  # fmt: skip
    assert made.events[-1] == "[DONE]"
    assert made.is_complete
    assert bench.outcomes() == {"engine_dead": 1}
    assert bench.last().ttft_s is not None


async def test_a_fault_of_ours_is_a_500_that_tells_nothing(caplog):
    logging.getLogger("chiasm").propagate = True
    bench = Bench(fail(KeyError("secret payload"), after=0))
    with caplog.at_level("ERROR", logger="chiasm"):
        made = await bench.post(ask())
    assert (made.status, made.error["code"]) == (500, "internal_error")
    assert "secret" not in made.body.decode()
    assert bench.last().request_id in caplog.text
    assert bench.outcomes() == {"internal_error": 1}


STAGES = {
    "fetch": (say(), ask("x", "hang:1")),
    "generation": (hang(), ask()),
    "stream": (hang(1), ask("a b", stream=True)),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_leaving_frees_everything_at_every_stage(stage):
    script, body = STAGES[stage]
    bench = Bench(script)
    made, task = bench.start(body)
    await (bench.ingest if stage == "fetch" else bench.worker).started.wait()
    if stage == "stream":
        await made.wrote.wait()
    made.leave()
    await asyncio.wait_for(task, 5)
    assert bench.outcomes() == {"cancelled": 1}
    assert bench.is_idle()
    bench.worker.script = say()
    assert (await bench.post(ask("short"))).status == 200


@pytest.mark.parametrize("stage", STAGES)
async def test_the_deadline_frees_everything_at_every_stage(stage):
    script, body = STAGES[stage]
    bench = Bench(script)
    made = await bench.post({**body, "chiasm": {"timeout_s": 0.1}})
    if stage == "stream":
        assert made.events[-2]["error"]["code"] == "deadline_exceeded"
        assert made.events[-1] == "[DONE]"
    else:
        assert (made.status, made.error["code"]) == (504, "deadline_exceeded")
    assert bench.outcomes() == {"deadline_exceeded": 1}
    assert bench.is_idle()


async def test_leaving_the_queue_gives_up_the_place():
    bench = Bench(hang(), max_running_requests=1)
    first, first_task = bench.start(ask("a"))
    await bench.worker.started.wait()
    second, second_task = bench.start(ask("b"))
    third, third_task = bench.start(ask("c"))
    await asyncio.sleep(0.01)
    second.leave()
    await asyncio.wait_for(second_task, 5)
    bench.worker.script = say()
    first.leave()
    await asyncio.wait_for(asyncio.gather(first_task, third_task), 5)
    assert third.json["choices"][0]["message"]["content"] == "c"
    assert len(bench.worker.requests) == 2
    assert bench.outcomes() == {"cancelled": 2, "finished": 1}
    assert bench.is_idle()


async def test_the_deadline_counts_in_the_queue_too():
    bench = Bench(hang(), max_running_requests=1)
    _, task = bench.start(ask("a", chiasm={"timeout_s": 0.2}))
    await bench.worker.started.wait()
    made = await bench.post(ask("b", chiasm={"timeout_s": 0.05}))
    assert made.status == 504
    assert bench.last().stages_s["queue"] >= 0.03
    await task


async def test_leaving_while_the_body_is_sent():
    bench = Bench()
    made = Call(bench.app, CHAT, pieces=[b'{"mess', None])
    task = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    made.leave()
    await asyncio.wait_for(task, 5)
    assert bench.outcomes() == {"cancelled": 1}
    assert bench.is_idle()


async def test_a_body_that_never_ends_meets_the_deadline():
    bench = Bench(request_timeout_s=0.05)
    made = await call(bench.app, CHAT, pieces=[b'{"mess', None])
    assert made.status == 408
    assert bench.is_idle()


async def test_a_large_body_is_refused():
    bench = Bench(max_body_bytes=1024)
    made = await bench.post(ask("x" * 2000))
    assert (made.status, made.error["code"]) == (413, "request_too_large")


async def test_a_slow_download_keeps_no_text_request_waiting():
    bench = Bench(max_running_requests=1)
    made, task = bench.start(ask("x", "hang:1"))
    await bench.ingest.started.wait()
    assert (await bench.post(ask("quick"))).status == 200
    made.leave()
    await task


async def test_more_than_may_wait_get_429():
    bench = Bench(hang(), max_running_requests=1, max_queued_requests=1)
    calls = [bench.start(ask(name)) for name in "ab"]
    await bench.worker.started.wait()
    made = await bench.post(ask("c"))
    assert (made.status, made.error["code"]) == (429, "overloaded")
    assert int(made.headers["retry-after"]) >= 1
    for waiting, _ in calls:
        waiting.leave()
    await asyncio.gather(*(task for _, task in calls))
    assert bench.outcomes() == {"cancelled": 2, "overloaded": 1}


async def test_a_client_that_stops_reading_does_not_hold_a_request_for_good(monkeypatch):
    monkeypatch.setattr("chiasm.gateway.exchange.exchange._LAST_WORDS_TIMEOUT_S", 0.05)
    bench = Bench(say(0.001))
    made, task = bench.start(ask("a b c d e", stream=True, chiasm={"timeout_s": 0.2}))
    made.read_slowly()
    await asyncio.wait_for(task, 5)
    assert bench.outcomes() == {"deadline_exceeded": 1}
    assert bench.is_idle()
    made.leave()


async def test_draining_refuses_newcomers_and_finishes_the_rest():
    bench = Bench(say(0.02))
    _, task = bench.start(ask("a b c"))
    await bench.worker.started.wait()
    bench.gateway.drain()
    made = await bench.post(ask())
    assert (made.status, made.error["code"]) == (503, "shutting_down")
    assert (await call(bench.app, "/ready")).status == 503
    assert (await call(bench.app, "/health")).status == 200
    assert (await task).status == 200


async def test_aborting_ends_what_is_open():
    bench = Bench(hang(1))
    whole, whole_task = bench.start(ask("a b"))
    streamed, streamed_task = bench.start(ask("a b", stream=True))
    await streamed.wrote.wait()
    bench.gateway.abort()
    await asyncio.wait_for(asyncio.gather(whole_task, streamed_task), 5)
    assert whole.error["code"] == streamed.events[-2]["error"]["code"] == "shutting_down"
    assert bench.outcomes() == {"shutting_down": 2}
    assert bench.is_idle()


async def test_a_cancelled_server_task_is_a_cancelled_request():
    bench = Bench(hang())
    _, task = bench.start(ask())
    await bench.worker.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.outcomes() == {"cancelled": 1}
    assert bench.is_idle()


async def test_names_of_pictures_are_bound_to_bytes():
    bench = Bench()

    async def named(url):
        return await bench.post(
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}, "uuid": "u"}]}]}
        )

    assert (await named("x:1")).status == 200
    assert (await named("x:1")).status == 200
    made = await named("x:2")
    assert (made.status, made.error["param"]) == (400, "/messages/0/content/0/uuid")


async def test_several_prompts_share_one_receipt():
    bench = Bench()
    made = await bench.post({"prompt": ["a b", "c"], "n": 2, "max_tokens": 5}, "/v1/completions")
    assert [choice["text"] for choice in made.json["choices"]] == ["a b", "a b", "c", "c"]
    assert made.json["usage"]["prompt_tokens"] == 20
    assert made.json["usage"]["completion_tokens"] == 6
    assert len({made_.request_id for made_ in bench.worker.requests}) == 2
    assert bench.last().num_output_tokens == 6
    assert bench.outcomes() == {"finished": 1}


async def test_the_worker_gets_what_is_left_of_the_deadline():
    bench = Bench()
    await bench.post(ask(chiasm={"timeout_s": 5}))
    assert 4 < bench.worker.requests[0].timeout_s <= 5


async def test_a_picture_that_only_the_worker_finds_broken_is_named_by_its_place_in_the_body():
    bench = Bench(fail(MediaDecodeError("Media item 1: the png data is truncated", item=1)))
    made = await bench.post(ask("a b", "x:1", "x:2"))
    assert made.status == 400
    error = made.json["error"]
    assert (error["code"], error["param"]) == ("media_undecodable", "/messages/0/content/1/image_url/url")
    assert bench.is_idle()
