"""Features of pictures in the pooling worker: what is kept, for whom, and that nothing is done twice."""

import asyncio

import numpy as np
import pytest

from chiasm.errors import MediaError
from chiasm.launch.pooling import start_pooling_worker
from chiasm.protocol.deletion import Deletion, Forgetful
from chiasm.protocol.pooling.work import MediaPairInput, PoolParams, PoolRequest, TextInput
from chiasm.settings import resolve
from tests.conditions import until
from tests.numeric.pooling.models import build_clip
from tests.numeric.pooling.pictures import picture, png

FIRST, SECOND = picture(png(40, 30, 1), (40, 30)), picture(png(30, 40, 2), (30, 40))
BROKEN = picture(png(40, 30, 3)[:300], (40, 30))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_clip(tmp_path_factory.mktemp("models") / "clip")


def start(directory, *overrides):
    overrides = [f"engine.model={directory}", "engine.threads=1", *overrides]
    return start_pooling_worker(resolve(environment={}, overrides=overrides).settings, lambda what, share: None)


@pytest.fixture
async def worker(directory):
    one = start(directory)
    yield one
    await one.aclose()


def ask(worker, *inputs, salt="", task="embed", **params):
    request = PoolRequest(
        request_id="r", task=task, inputs=inputs, cache_salt=salt, params=PoolParams(**params), timeout_s=60.0
    )
    return worker.pool(request)


async def until_under_way(worker):
    """Look in every turn of the event loop: a small picture is under way for no longer than a few of them."""
    while not worker.stats().num_held_embeddings:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


def counts(worker):
    """Pictures decoded, encoded, found in the cache."""
    totals = worker.stats().totals
    names = ("pooling_pictures_decoded", "pooling_pictures_encoded", "embedding_hits")
    return tuple(totals[name] for name in names)


async def test_a_picture_seen_before_is_neither_decoded_nor_encoded(worker):
    first = await ask(worker, FIRST, TextInput("a"))
    assert (counts(worker), first.num_cached_embeddings) == ((1, 1, 0), 0)
    num_batches = worker.stats().totals["pooling_batches"]
    again = await ask(worker, FIRST)
    assert (counts(worker), again.num_cached_embeddings) == ((1, 1, 1), 1)
    assert worker.stats().totals["pooling_batches"] == num_batches, "the engine had nothing to do"
    assert again.num_computed_tokens == 0
    assert again.num_visual_tokens == 16
    assert np.array_equal(first.outputs[0].values, again.outputs[0].values)
    assert [span.stage for span in again.spans] == ["tokenize", "post"]


async def test_several_who_want_it_at_once_wait_for_one_encoding(worker):
    answers = await asyncio.gather(*(ask(worker, FIRST, SECOND) for _ in range(5)))
    assert counts(worker)[:2] == (2, 2)
    for answer in answers:
        assert np.array_equal(answer.outputs[1].values, answers[0].outputs[1].values)
    assert worker.stats().num_held_embeddings == 0


async def test_scopes_share_nothing(worker):
    await ask(worker, FIRST, salt="one")
    await ask(worker, FIRST, salt="two")
    assert counts(worker) == (2, 2, 0)
    assert worker.stats().num_cached_embeddings == 2


async def test_deleting_reaches_what_is_kept(worker):
    assert isinstance(worker, Forgetful)
    await ask(worker, FIRST, SECOND, salt="one")
    await ask(worker, FIRST, salt="two")
    [deleted] = await worker.forget(Deletion(identity=FIRST.item.identity), 5.0)
    assert (deleted.num_embeddings, worker.stats().num_cached_embeddings) == (2, 1)
    [deleted] = await worker.forget(Deletion(cache_salt="one"), 5.0)
    assert (deleted.num_embeddings, worker.stats().num_cached_embeddings) == (1, 0)
    await ask(worker, FIRST, salt="one")
    assert counts(worker) == (4, 4, 0)


async def test_what_is_deleted_while_it_is_made_is_not_kept(worker):
    running = asyncio.create_task(ask(worker, FIRST))
    await until_under_way(worker)
    [deleted] = await worker.forget(Deletion(identity=FIRST.item.identity), 5.0)
    assert deleted.num_pending == 1
    assert len((await running).outputs[0].values) == 24, "who had asked is answered"
    assert worker.stats().num_cached_embeddings == 0


async def test_the_cache_is_bounded_in_bytes_and_time(directory):
    one = start(directory, "engine.embedding_cache_bytes=96")  # one row of 24 floats
    try:
        await ask(one, FIRST, SECOND)
        assert one.stats().num_cached_embeddings == 1
    finally:
        await one.aclose()
    one = start(directory, "engine.embedding_ttl_s=0.05")
    try:
        await ask(one, FIRST)
        await until(lambda: one.stats().num_cached_embeddings == 0)
    finally:
        await one.aclose()


async def test_cancelling_leaves_nothing_under_way(worker):
    running = asyncio.create_task(ask(worker, FIRST))
    await until_under_way(worker)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stats = worker.stats()
    assert (stats.num_open_requests, stats.num_held_embeddings) == (0, 0)
    await until(lambda: worker.stats().num_waiting == 0)


async def test_one_broken_picture_fails_the_request_or_by_option_its_output(worker):
    pair = [MediaPairInput("a dog", one.item) for one in (FIRST, BROKEN, SECOND)]
    with pytest.raises(MediaError) as caught:
        await ask(worker, *pair, task="score")
    assert caught.value.item == 1
    answer = await ask(worker, *pair, task="score", reports_failures=True)
    assert [one.error is None for one in answer.outputs] == [True, False, True]
    assert isinstance(answer.outputs[1].error, MediaError)
    alone = await ask(worker, pair[2], task="score")
    assert answer.outputs[2].values == pytest.approx(alone.outputs[0].values, abs=1e-6)
    only = await ask(worker, pair[1], task="score", reports_failures=True)
    assert only.outputs[0].error is not None


async def test_scores_between_texts_and_pictures_are_cosines_of_their_embeddings(worker):
    embedded = await ask(worker, TextInput("a dog"), FIRST, SECOND)
    text, first, second = (one.values for one in embedded.outputs)
    pairs = [
        MediaPairInput("a dog", FIRST.item),
        MediaPairInput(SECOND.item, "a dog"),
        MediaPairInput(FIRST.item, SECOND.item),
    ]
    scores = await ask(worker, *pairs, task="score")
    found = [float(one.values[0]) for one in scores.outputs]
    assert found == pytest.approx([text @ first, text @ second, first @ second], abs=1e-6)


async def test_spans_and_errors_number_pictures(worker):
    """As they stand in the inputs: the gateway knows which reference that is."""
    answer = await ask(worker, TextInput("a"), FIRST, TextInput("b"), SECOND)
    assert {span.item for span in answer.spans if span.stage == "encode"} == {0, 1}
    with pytest.raises(MediaError) as caught:
        await ask(worker, TextInput("a"), FIRST, BROKEN)
    assert caught.value.item == 1
    with pytest.raises(MediaError) as caught:
        await ask(worker, *(MediaPairInput(BROKEN.item, one.item) for one in (FIRST, SECOND)), task="score")
    assert caught.value.item == 0


async def test_nothing_asked_is_nothing_answered(worker):
    """A processor may find that there is nothing to compute."""
    for task in ("embed", "score"):
        assert (await ask(worker, task=task)).outputs == ()
