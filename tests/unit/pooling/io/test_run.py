"""The life of a request inside a processor: order, and state that is gone on every way out."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from chiasm.errors import (
    EngineStepError,
    InvalidRequestError,
    MediaDecodeError,
    PluginError,
    UnsupportedFeatureError,
)
from chiasm.media.reference import MediaReference
from chiasm.pooling.io.base import IOProcessor, ProcessorWork, run
from chiasm.protocol.pooling.work import PoolingInfo, PoolOutput, PoolParams, TextInput
from tests.conditions import until

INFO = PoolingInfo(tasks=("embed",), max_tokens=8)


class State:
    """What `pre` leaves for `post`; can be watched."""


class Processor(IOProcessor):
    """Fails in the step that the data names."""

    name = "scripted"

    def __init__(self, info=INFO):
        super().__init__(info)
        self.contexts = []
        self.states = weakref.WeakSet()

    def parse(self, data):
        self._maybe("parse", data)
        return data

    def merge_params(self, params):
        return PoolParams(truncate="end")

    def pre(self, request, context):
        self.contexts.append(weakref.ref(context))
        context.state = State()
        context.state.request = request
        self.states.add(context.state)
        self._maybe("pre", request)
        return ProcessorWork("embed", tuple(TextInput(text) for text in request["texts"]))

    def post(self, outputs, context):
        assert context.state.request["texts"], "the state of another request"
        self._maybe("post", context.state.request)
        return [float(one.values[0]) for one in outputs], context.state.request["texts"]

    def _maybe(self, step, data):
        if data.get("fail") == step:
            raise data.get("error", ValueError("a bug"))

    async def num_alive(self):
        """What is left: the loop and its threads let go of a call a moment after they have answered it."""
        for _ in range(20):
            await asyncio.sleep(0.01)
            gc.collect()
            if not (alive := len(self.states) + sum(context() is not None for context in self.contexts)):
                break
        return alive


async def engine(task, inputs, params):
    assert (task, params.truncate) == ("embed", "end")
    await asyncio.sleep(0)
    return [PoolOutput(values=np.array([len(one.text)], np.float32), num_tokens=1) for one in inputs]


async def broken(task, inputs, params):
    raise EngineStepError("broken")


async def hanging(task, inputs, params):
    await asyncio.Event().wait()


def serve(processor, data, by=engine):
    return run(processor, data, PoolParams(), "r", by, asyncio.to_thread)


async def test_from_data_to_answer_in_order_with_duplicates():
    processor = Processor()
    texts = ["aaa", "b", "aaa", ""]
    assert await serve(processor, {"texts": texts}) == ([3.0, 1.0, 3.0, 0.0], texts)
    assert await processor.num_alive() == 0


@pytest.mark.parametrize("step", ["parse", "pre", "post"])
async def test_a_bug_is_an_error_of_the_plugin_and_leaves_nothing(step):
    processor = Processor()
    with pytest.raises(PluginError, match=f"'scripted' failed in {step}") as caught:
        await serve(processor, {"texts": ["a"], "fail": step})
    assert isinstance(caught.value.__cause__, ValueError)
    caught = None
    assert await processor.num_alive() == 0


@pytest.mark.parametrize("step", ["parse", "pre", "post"])
async def test_a_refusal_passes_as_it_is(step):
    processor = Processor()
    with pytest.raises(InvalidRequestError):
        await serve(processor, {"texts": ["a"], "fail": step, "error": InvalidRequestError("no")})
    assert await processor.num_alive() == 0


async def test_a_failing_engine_leaves_nothing():
    processor = Processor()
    with pytest.raises(EngineStepError):
        await serve(processor, {"texts": ["a"]}, broken)
    assert await processor.num_alive() == 0


async def test_cancellation_leaves_nothing():
    processor = Processor()
    running = asyncio.create_task(serve(processor, {"texts": ["a"]}, hanging))
    await until(lambda: processor.contexts)
    assert await processor.num_alive()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    del running
    assert await processor.num_alive() == 0


async def test_requests_side_by_side_keep_their_own_state():
    processor = Processor()
    answers = await asyncio.gather(*(serve(processor, {"texts": ["x" * n, "x"]}) for n in range(1, 40)))
    assert [lengths[0] for lengths, _ in answers] == list(range(1, 40))
    assert [texts[0] for _, texts in answers] == ["x" * n for n in range(1, 40)]
    assert await processor.num_alive() == 0


async def test_one_in_ten_failing_and_some_cancelled_leave_nothing():
    processor = Processor()
    tasks = []
    for n in range(200):
        data = {"texts": [str(n)]} | ({"fail": "post"} if n % 10 == 0 else {})
        tasks.append(asyncio.create_task(serve(processor, data, hanging if n % 7 == 3 else engine)))
    await until(lambda: len(processor.contexts) == 200)
    for task in tasks[3::7]:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(end, PluginError) for end in ended) == sum(n % 7 != 3 for n in range(0, 200, 10))
    assert sum(isinstance(end, asyncio.CancelledError) for end in ended) == len(tasks[3::7])
    del ended, tasks, task
    assert await processor.num_alive() == 0


async def test_pictures_that_a_processor_names_are_there_before_it_makes_inputs():
    seen = []

    class Looking(Processor):
        def media(self, request):
            return [MediaReference("image", url, "/data") for url in request["pictures"]]

        def pre(self, request, context):
            seen.append(context.media)
            return super().pre(request, context)

    async def collect(references):
        return [MediaDecodeError(one.url) for one in references]

    processor, data = Looking(), {"texts": ["a"], "pictures": ["u", "v"]}
    await run(processor, data, PoolParams(), "r", engine, asyncio.to_thread, collect)
    assert [error.message for error in seen[0]] == ["u", "v"]
    with pytest.raises(UnsupportedFeatureError):
        await run(processor, data, PoolParams(), "r", engine, asyncio.to_thread)
    await run(processor, data | {"pictures": []}, PoolParams(), "r", engine, asyncio.to_thread)
    assert seen[1] == ()
