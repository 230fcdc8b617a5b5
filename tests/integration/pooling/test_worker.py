"""The pooling worker around a small model: cancellation, deadlines, bounds, and an engine that fails."""

import asyncio
import threading

import pytest

from chiasm.errors import (
    ContextLengthError,
    DeadlineExceededError,
    EngineDeadError,
    EngineStepError,
    InvalidRequestError,
    OverloadedError,
    UnsupportedFeatureError,
)
from chiasm.launch.pooling import start_pooling_worker
from chiasm.protocol.pooling.work import PairInput, PoolParams, PoolRequest, TextInput, TokensInput
from chiasm.settings import resolve
from tests.conditions import until
from tests.numeric.pooling.models import as_sentence_transformer, build


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "m"
    return as_sentence_transformer(build(folder, "bert", max_position_embeddings=64), "mean_tokens")


@pytest.fixture
async def worker(directory):
    overrides = [f"engine.model={directory}", "engine.threads=1", "pooling.max_waiting_tokens=100"]
    overrides.append("pooling.max_batch_tokens=40")
    one = start_pooling_worker(resolve(environment={}, overrides=overrides).settings, lambda what, share: None)
    yield one
    await one.aclose()


@pytest.fixture
def gate(worker):
    """Holds batches at the door until it is opened; `entered` counts them."""
    runner, door = worker._loop._runner, threading.Event()
    run = runner.run
    door.entered = 0
    door.failures = 0

    def guarded(inputs, **options):
        door.entered += 1
        assert door.wait(60)
        if door.failures:
            door.failures -= 1
            raise RuntimeError("told to fail")
        return run(inputs, **options)

    runner.run = guarded
    yield door
    door.set()


def ask(worker, *texts, task="embed", timeout_s=60.0, **params):
    inputs = tuple(TextInput(text) if isinstance(text, str) else text for text in texts)
    return worker.pool(
        PoolRequest(request_id="r", task=task, inputs=inputs, params=PoolParams(**params), timeout_s=timeout_s)
    )


async def test_duplicates_are_computed_once(worker):
    before = worker.stats().totals["pooling_inputs"]
    response = await ask(worker, "abc", "x", "abc", "abc")
    assert worker.stats().totals["pooling_inputs"] == before + 2
    assert response.outputs[0].values is response.outputs[2].values
    assert response.num_computed_tokens == 5 + 3
    assert [one.num_tokens for one in response.outputs] == [5, 3, 5, 5]


async def test_a_query_is_embedded_once_for_all_its_documents(worker):
    before = worker.stats().totals["pooling_inputs"]
    pairs = [PairInput("query", text) for text in ("a", "b", "a", "c")]
    await ask(worker, *pairs, task="score")
    assert worker.stats().totals["pooling_inputs"] == before + 4


async def test_stages(worker):
    spans = (await ask(worker, "abc")).spans
    assert [span.stage for span in spans] == ["tokenize", "pool_queue", "forward", "post"]
    assert all(span.end_s >= span.start_s >= 0 for span in spans)


async def test_cancelling_drops_what_is_not_computed_yet(worker, gate):
    running = asyncio.create_task(ask(worker, *(f"text number {n}" for n in range(6))))
    await until(lambda: gate.entered == 1)
    assert worker.stats().num_open_requests == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (worker.stats().num_open_requests, worker.stats().num_waiting) == (0, 0)
    gate.set()
    await ask(worker, "next")
    assert gate.entered == 2


async def test_the_deadline_ends_a_request_that_waits(worker, gate):
    with pytest.raises(DeadlineExceededError):
        await ask(worker, "abc", timeout_s=0.05)
    assert (worker.stats().num_open_requests, worker.stats().num_waiting) == (0, 0)


async def test_more_tokens_than_may_wait_are_refused(worker, gate):
    first = asyncio.create_task(ask(worker, "busy"))
    await until(lambda: gate.entered == 1)
    waiting = [asyncio.create_task(ask(worker, "x" * 40 + str(n))) for n in range(2)]
    await until(lambda: worker._loop.num_waiting_tokens > 80)
    with pytest.raises(OverloadedError):
        await ask(worker, "y" * 40)
    gate.set()
    await asyncio.gather(first, *waiting)


async def test_a_request_larger_than_the_bound_runs_when_nobody_waits(worker):
    assert len((await ask(worker, *(f"{n}" * 30 for n in range(5)))).outputs) == 5


async def test_a_failing_batch_ends_its_requests_only(worker, gate):
    gate.failures = 1
    failing = asyncio.create_task(ask(worker, "first"))
    await until(lambda: gate.entered == 1)
    waiting = asyncio.create_task(ask(worker, "second"))
    gate.set()
    with pytest.raises(EngineStepError):
        await failing
    assert len((await waiting).outputs) == 1
    assert worker.stats().is_healthy


async def test_closing_ends_open_requests(worker, gate):
    running = asyncio.create_task(ask(worker, *(f"text number {n}" for n in range(6))))
    await until(lambda: gate.entered == 1)
    closing = asyncio.create_task(worker.aclose())
    await until(lambda: not worker.stats().is_healthy)
    gate.set()
    with pytest.raises(EngineDeadError):
        await running
    await closing
    with pytest.raises(EngineDeadError):
        await ask(worker, "late")


async def test_short_requests_pass_long_ones(worker, gate):
    ended = []

    async def noted(name, *texts):
        await ask(worker, *texts)
        ended.append(name)

    first = asyncio.create_task(noted("busy", "busy"))
    await until(lambda: gate.entered == 1)
    bulk = asyncio.create_task(noted("bulk", "x" * 36, "y" * 36))
    await until(lambda: worker.stats().num_waiting == 2)
    query = asyncio.create_task(noted("query", "query"))
    await until(lambda: worker.stats().num_waiting == 3)
    gate.set()
    await asyncio.gather(first, bulk, query)
    assert ended.index("query") < ended.index("bulk")


@pytest.mark.parametrize(
    ("texts", "params", "error", "item"),
    [
        (["ok", "x" * 100], {}, ContextLengthError, 1),
        (["ok", TokensInput((10**6,))], {}, InvalidRequestError, 1),
        (["ok", ""], {"add_special_tokens": False}, InvalidRequestError, 1),
        (["ok"], {"dimensions": 33}, InvalidRequestError, None),
        (["ok"], {"max_tokens": 1, "truncate": "end"}, InvalidRequestError, 0),
    ],
)
async def test_inputs_that_cannot_be_taken(worker, texts, params, error, item):
    with pytest.raises(error) as caught:
        await ask(worker, *texts, **params)
    assert caught.value.item == item
    assert worker.stats().num_open_requests == 0


async def test_documents_can_be_cut_by_themselves(worker):
    pairs = [PairInput("a long query", text) for text in ("abcdefgh", "ab")]
    whole = await ask(worker, *pairs, task="score")
    cut = await ask(worker, *pairs, task="score", truncate="end", max_document_tokens=2)
    assert [one.is_truncated for one in cut.outputs] == [True, False]
    assert [one.num_tokens for one in cut.outputs] == [whole.outputs[1].num_tokens] * 2
    assert cut.outputs[1].values == whole.outputs[1].values


async def test_a_document_that_is_too_long_is_named_by_its_place(worker):
    pairs = [PairInput("q", text) for text in ("a", "a", "x" * 100)]
    with pytest.raises(ContextLengthError) as caught:
        await ask(worker, *pairs, task="score")
    assert caught.value.item == 2


async def test_tasks_that_the_model_does_not_do(worker):
    with pytest.raises(UnsupportedFeatureError):
        await ask(worker, "x", task="classify")
    with pytest.raises(InvalidRequestError):
        await ask(worker, "x", task="score")
