"""Results of decoder processes in shared memory: whatever ends a picture or a process, no memory stays behind."""

import asyncio
import errno
import gc
import signal
from pathlib import Path

import numpy as np
import pytest

from chiasm.errors import EngineError, MediaDecodeError
from chiasm.media import MediaSettings, PictureDecoder
from chiasm.media.isolation import pool as pool_module
from chiasm.media.isolation.blocks import BLOCK_BYTES, NUM_BLOCKS
from tests.faults.test_media_isolation import ITEM, READS_ON, SHORT_S, TAKEN, program
from tests.unit.media.preparers import Fails, Gate, HandsThrough, Killed, Large, Leaves, Sleeps, WritesThen


def memory_of(kind):
    """Mappings or open descriptors of this process that are blocks."""
    if kind == "maps":
        return Path("/proc/self/maps").read_text().count("memfd:chiasm-decoder")
    links = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(each.readlink()))
        except FileNotFoundError:  # the one that lists them
            continue
    return sum("memfd:chiasm-decoder" in link for link in links)


@pytest.fixture
def start():
    gc.collect()
    opened, before = [], (memory_of("maps"), memory_of("fd"))

    def start(**options):
        opened.append(PictureDecoder(MediaSettings(**{"decoder": "processes", "decode_threads": 1, **options})))
        return opened[-1]

    yield start
    for decoder in opened:
        decoder.close()
    gc.collect()
    assert memory_of("maps") == before[0]
    assert memory_of("fd") == before[1]


def only_process(decoder):
    [process] = decoder._decode._idle
    return process


async def until(condition):
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("never came true")


async def until_free(decoder):
    """The thread that decoded may let go of its result a moment after who waited for it."""
    gc.collect()
    await until(lambda: only_process(decoder).num_free_blocks == NUM_BLOCKS)


async def prepared(decoder, preparer, value=7):
    arrays = (await decoder.prepare(ITEM, preparer)).arrays
    assert (arrays["written"] == value).all()
    assert (arrays["copied"] == np.full((50, 400), value, np.float32)).all()
    assert arrays["small"].tolist() == [0, 1, 2, 3, 4]
    return arrays


async def test_results_stay_while_their_block_is_used_by_nobody_else(start):
    decoder = start()
    kept = [await prepared(decoder, Large(value), value) for value in range(NUM_BLOCKS + 3)]  # the last by the socket
    assert only_process(decoder).num_free_blocks == 0
    for value, arrays in enumerate(kept):
        assert (arrays["written"] == value).all()
    del arrays, kept
    await until_free(decoder)


async def test_results_outlive_their_process(start):
    decoder = start()
    arrays = await prepared(decoder, Large())
    with pytest.raises(MediaDecodeError):
        await decoder.prepare(ITEM, Killed(signal.SIGKILL))
    decoder.close()
    gc.collect()
    assert (arrays["written"] == 7).all()


async def test_what_is_larger_than_a_block_comes_by_the_socket(start):
    decoder = start()
    await prepared(decoder, Large(num_bytes=BLOCK_BYTES + 3))
    await until_free(decoder)


ENDS = {
    "crash": (Killed(signal.SIGSEGV), "crashed"),
    "kill": (Killed(signal.SIGKILL), "crashed"),
    "exit": (Leaves(), "no usable reply"),
    "hang": (Sleeps(), "took longer"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_process_that_ends_half_way_leaves_no_memory(start, name):
    decoder, (then, cause) = start(decode_timeout_s=SHORT_S), ENDS[name]
    await prepared(decoder, Large())
    before = memory_of("maps"), memory_of("fd")
    with pytest.raises(MediaDecodeError, match=cause):
        await decoder.prepare(ITEM, WritesThen(then))
    gc.collect()
    assert (memory_of("maps"), memory_of("fd")) == before  # those of the process that stands in for it
    await prepared(decoder, Large())


async def test_pictures_that_fail_or_are_small_give_their_block_back(start):
    decoder = start()
    for _ in range(NUM_BLOCKS + 1):
        with pytest.raises(MediaDecodeError):
            await decoder.prepare(ITEM, WritesThen(Fails()))
        await decoder.prepare(ITEM, HandsThrough())
    await until_free(decoder)


async def test_a_cancelled_picture_gives_its_block_back(start, tmp_path):
    decoder, gate = start(), Gate(tmp_path)
    await prepared(decoder, Large())
    task = asyncio.create_task(decoder.prepare(ITEM, WritesThen(gate)))
    await until(lambda: gate.num_inside)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await until(lambda: decoder._decode._idle)
    await until_free(decoder)
    await prepared(decoder, Large())


async def test_a_cancelled_result_gives_its_block_back(start):
    decoder = start()
    for _ in range(NUM_BLOCKS + 2):
        task = asyncio.create_task(decoder.prepare(ITEM, Large()))
        await asyncio.sleep(0)  # it is handed to a thread
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not decoder.num_decoding)
    await until_free(decoder)


async def test_a_process_that_did_not_get_its_memory_is_replaced(start, monkeypatch):
    lost = pool_module._PROGRAM.replace("*map(int, sys.argv[1:3])", "int(sys.argv[1]), 9999")
    assert lost != pool_module._PROGRAM
    monkeypatch.setattr(pool_module, "_PROGRAM", lost)
    decoder = start()
    monkeypatch.undo()
    await prepared(decoder, Large())
    assert (decoder.num_failed, decoder._decode.num_replaced) == (0, 1)


def done(offset, dtype="|u1"):
    import msgspec

    from chiasm.media.isolation.wire import ArrayHead, Done

    text = msgspec.msgpack.encode(Done(0.0, 0.0, 0.0, (ArrayHead("a", dtype, (64,), offset),)))
    return len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    "said", [(1,), (BLOCK_BYTES,), (2**40,), (0, "<b8"), (0, "|f1"), (None, "<u3"), (0, "|O8"), (0, "|u1\n")]
)
async def test_places_outside_of_the_block_and_unknown_types_are_no_reply(start, monkeypatch, said):
    steps = [f"s.sendall({TAKEN!r})", f"s.sendall({done(*said)!r})", READS_ON]
    monkeypatch.setattr(pool_module, "_PROGRAM", program(*steps))
    decoder = start()
    with pytest.raises(MediaDecodeError, match="gave no usable reply"):
        await decoder.prepare(ITEM, HandsThrough())
    monkeypatch.undo()


def scarce(*_):
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_process_that_cannot_be_started_leaves_no_descriptor(monkeypatch):
    before = memory_of("fd")
    monkeypatch.setattr(pool_module, "_started", scarce)
    with pytest.raises(EngineError, match="cannot be started: Too many open files"):
        pool_module.DecoderProcess(MediaSettings(decoder="processes"))
    gc.collect()
    assert memory_of("fd") == before


async def test_a_crash_is_what_is_said_when_no_other_process_can_be_started(start, monkeypatch):
    decoder = start()
    await prepared(decoder, Large())
    with monkeypatch.context() as patched:
        patched.setattr(pool_module, "_started", scarce)
        with pytest.raises(MediaDecodeError, match="crashed"):
            await decoder.prepare(ITEM, Killed(signal.SIGKILL))
        with pytest.raises(EngineError, match="Too many open files"):
            await decoder.prepare(ITEM, Large())
    await prepared(decoder, Large())
