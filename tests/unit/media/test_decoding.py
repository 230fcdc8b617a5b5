"""What both kinds of decoder promise."""

import asyncio

import numpy as np
import pytest

from chiasm.errors import MediaDecodeError, MediaTooLargeError
from chiasm.media.decoding import PictureDecoder
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import encode, gradient
from tests.unit.media.preparers import Gate, ManyArrays


def item(data, width=24, height=16):
    return MediaItem(identity="0" * 64, format="png", width=width, height=height, source=InlineSource(data))


PICTURE = encode(gradient(24, 16), "png")


@pytest.fixture(params=["threads", "processes"])
def start(request):
    opened = []

    def start(**options):
        opened.append(PictureDecoder(MediaSettings(decoder=request.param, **options)))
        return opened[-1]

    yield start
    for decoder in opened:
        decoder.close()


@pytest.fixture
def decoder(start):
    return start(decode_threads=2, max_decoding_pixels=1000)


@pytest.fixture
def gate(tmp_path):
    gate = Gate(tmp_path)
    yield gate
    gate.open()


async def until(condition):
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("never came true")


async def until_idle(decoder):
    await until(lambda: decoder.num_decoding_pixels == 0 and decoder.num_decoding == 0)


async def test_pixels_arrive_at_the_preparer(decoder, preparer):
    clock = StageClock()
    prepared = await decoder.prepare(item(PICTURE), preparer, clock, 3)
    assert (prepared.arrays["pixels"] == np.asarray(gradient(24, 16))).all()
    assert [(span.stage, span.item) for span in clock.spans] == [("decode_media", 3), ("prepare", 3)]
    await until_idle(decoder)
    assert (decoder.num_decoded, decoder.num_failed) == (1, 0)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (item(PICTURE[:-40]), "png data is"),
        (item(b""), "empty"),
        (item(PICTURE, 16, 24), "announced as"),
    ],
)
async def test_broken_items_are_an_error_and_hold_nothing(decoder, preparer, bad, cause):
    with pytest.raises(MediaDecodeError, match=cause):
        await decoder.prepare(bad, preparer, index=2)
    await until_idle(decoder)
    assert (decoder.num_decoded, decoder.num_failed) == (0, 1)


async def test_the_limits_are_checked_again(start, preparer):
    decoder = start(max_item_pixels=100)
    with pytest.raises(MediaTooLargeError):
        await decoder.prepare(item(PICTURE), preparer)


async def test_arrays_of_every_kind_arrive(decoder):
    got = await decoder.prepare(item(PICTURE), ManyArrays())
    wanted = ManyArrays().arrays(None)
    assert list(got.arrays) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got.arrays[name], array, strict=True)
    assert got.plan == ManyArrays().plan(24, 16)


async def test_pictures_in_work_never_exceed_the_pixel_limit(start, gate):
    decoder = start(decode_threads=3, max_decoding_pixels=1000)
    tasks = [asyncio.create_task(decoder.prepare(item(PICTURE), gate)) for _ in range(6)]
    await until(lambda: gate.num_inside == 2)
    await asyncio.sleep(0.05)
    assert gate.num_inside == 2  # 3 x 384 pixels would be too many
    assert decoder.num_decoding_pixels == 768
    gate.open()
    await asyncio.gather(*tasks)
    await until_idle(decoder)
    assert decoder.num_decoded == 6


@pytest.mark.parametrize(("cores", "is_crowding"), [(1, True), (2, True), (3, True), (4, False)])
async def test_decoding_is_crowding_where_it_leaves_one_core_at_most(start, gate, monkeypatch, cores, is_crowding):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    decoder = start(decode_threads=2, max_decoding_pixels=10_000)
    tasks = [asyncio.create_task(decoder.prepare(item(PICTURE), gate)) for _ in range(5)]
    await until(lambda: gate.num_inside == 2)
    assert decoder.is_crowding() is is_crowding
    gate.open()
    await asyncio.gather(*tasks)
    await until_idle(decoder)
    assert decoder.is_crowding() is (cores == 1)


async def test_cancelling_gives_everything_back(decoder, preparer, gate):
    tasks = [asyncio.create_task(decoder.prepare(item(PICTURE), gate)) for _ in range(5)]
    await until(lambda: gate.num_inside == 2)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert decoder.num_decoding_pixels == 768  # the threads are still at it
    gate.open()
    await until_idle(decoder)
    assert gate.num_inside == 2
    await decoder.prepare(item(PICTURE), preparer)


async def test_a_closed_decoder_takes_nothing_and_holds_nothing(decoder, preparer):
    decoder.close()
    with pytest.raises(RuntimeError):
        await decoder.prepare(item(PICTURE), preparer)
    assert decoder.num_decoding_pixels == 0
