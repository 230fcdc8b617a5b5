"""Decoder processes that crash, hang, swell or vanish: one failed picture each, and a fresh process for the next."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from chiasm.errors import EngineError, MediaDecodeError, MediaRefusedError, MediaTooLargeError
from chiasm.media import MediaItem, MediaSettings, PictureDecoder
from chiasm.media.isolation import pool as pool_module
from chiasm.media.isolation.wire import ArrayHead, num_array_bytes
from chiasm.protocol.media import InlineSource
from tests.unit.media.pictures import encode, gradient
from tests.unit.media.preparers import Fails, HandsThrough, Killed, Leaves, Refuses, SaysWhere, Sleeps, Swells

PICTURE = encode(gradient(24, 16), "png")
SHORT_S = 5.0  # for whatever must time out here, and yet enough for a picture on a machine with other work
READY = b"\0\0\0\x0c\x81\xa4type\xa5ready"
TAKEN = b"\0\0\0\x0c\x81\xa4type\xa5taken"
ITEM = MediaItem(identity="0" * 64, format="png", width=24, height=16, source=InlineSource(PICTURE))


@pytest.fixture
def start():
    opened = []

    def start(**options):
        opened.append(PictureDecoder(MediaSettings(**{"decoder": "processes", "decode_threads": 1, **options})))
        return opened[-1]

    yield start
    for decoder in opened:
        decoder.close()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid):
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.01)


async def worker_of(decoder):
    return int((await decoder.prepare(ITEM, SaysWhere())).arrays["pid"][0])


async def test_pictures_are_decoded_elsewhere_by_one_process_after_the_other(start):
    decoder = start()
    first = await worker_of(decoder)
    assert first != os.getpid()
    assert await worker_of(decoder) == first


REPLACED = {
    "SIGSEGV": (Killed(signal.SIGSEGV), {}, "crashed on this picture: Segmentation fault"),
    "SIGKILL": (Killed(signal.SIGKILL), {}, "crashed on this picture: Killed"),
    "exit": (Leaves(), {}, "gave no usable reply"),
    "hang": (Sleeps(), {"decode_timeout_s": SHORT_S}, f"took longer than {SHORT_S:g} s"),
}


@pytest.mark.parametrize("name", REPLACED)
async def test_a_crash_or_hang_is_one_failed_picture(start, name):
    preparer, options, cause = REPLACED[name]
    decoder = start(**options)
    before = await worker_of(decoder)
    with pytest.raises(MediaDecodeError, match=cause):
        await decoder.prepare(ITEM, preparer)
    assert not is_running(before)
    assert await worker_of(decoder) != before
    prepared = await decoder.prepare(ITEM, HandsThrough())
    assert (prepared.arrays["pixels"] == np.asarray(gradient(24, 16))).all()
    assert decoder.num_decoding_pixels == 0
    assert decoder.num_failed == 1


REPORTED = {
    "memory": (Swells(), MediaTooLargeError, "more memory than the limit"),
    "a fault": (Fails(), MediaDecodeError, "failed on this picture: ZeroDivisionError"),
    "a refusal": (Refuses(), MediaRefusedError, "Not this one"),
}


@pytest.mark.parametrize("name", REPORTED)
async def test_errors_come_back_and_leave_the_process_alone(start, name):
    preparer, error, cause = REPORTED[name]
    decoder = start()
    before = await worker_of(decoder)
    with pytest.raises(error, match=cause) as caught:
        await decoder.prepare(ITEM, preparer)
    assert "secret" not in caught.value.message
    assert caught.value.hint == ("Another" if error is MediaRefusedError else None)
    assert await worker_of(decoder) == before


async def test_neighbours_are_unaffected(start):
    decoder = start(decode_threads=2)
    preparers = [Killed(signal.SIGSEGV) if i % 4 == 1 else HandsThrough() for i in range(12)]
    results = await asyncio.gather(*(decoder.prepare(ITEM, each) for each in preparers), return_exceptions=True)
    assert [isinstance(result, MediaDecodeError) for result in results] == [i % 4 == 1 for i in range(12)]
    assert (decoder.num_decoded, decoder.num_failed) == (9, 3)


async def test_a_process_that_ended_while_idle_harms_no_picture(start):
    decoder = start()
    pid = await worker_of(decoder)
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    assert await worker_of(decoder) != pid
    assert (decoder.num_failed, decoder._decode.num_replaced) == (0, 1)


async def test_processes_that_ended_but_still_look_alive_harm_no_picture(start, monkeypatch):
    monkeypatch.setattr(pool_module.DecoderProcess, "is_alive", True)
    decoder = start(decode_threads=2)
    pids = {await worker_of(decoder), *decoder._decode.idle_pids}
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        until_gone(pid)
    assert await worker_of(decoder) not in pids
    assert (decoder.num_failed, decoder._decode.num_replaced) == (0, 2)


DOES_NOT_TAKE = {"ends": "sys.exit()", "talks nonsense": "s.sendall(b'\\xff' * 9)", "hangs": "time.sleep(60)"}


READS_ON = "all(iter(lambda: s.recv(9999), b''))"
"""Until the other side closes: ending with something unread would look like a crash."""


def program(*steps):
    head = ["import sys, socket, time", "s = socket.socket(fileno=int(sys.argv[1]))", "s.recv(9999)"]
    return "; ".join([*head, f"s.sendall({READY!r})", "s.recv(1)", *steps])


@pytest.mark.parametrize("name", DOES_NOT_TAKE)
async def test_a_picture_that_a_process_did_not_take_goes_to_another(start, monkeypatch, name):
    monkeypatch.setattr(pool_module, "_PROGRAM", program(DOES_NOT_TAKE[name], "s.recv(9999)"))
    decoder = start(decode_timeout_s=SHORT_S if name == "hangs" else 20.0)
    [pid] = decoder._decode.idle_pids
    monkeypatch.undo()
    assert await worker_of(decoder) != pid
    assert (decoder.num_failed, decoder._decode.num_replaced) == (0, 1)
    until_gone(pid)


async def test_processes_that_never_take_pictures_are_a_fault_of_the_server(start, monkeypatch):
    monkeypatch.setattr(pool_module, "_PROGRAM", program("sys.exit()"))
    decoder = start(decode_threads=2)
    with pytest.raises(EngineError, match="end before they take a picture"):
        await decoder.prepare(ITEM, HandsThrough())
    assert decoder._decode.num_replaced == 3
    assert decoder._decode.idle_pids == []


async def test_closing_ends_idle_processes_at_once_and_busy_ones_in_time(start):
    decoder = start(decode_threads=2, decode_timeout_s=SHORT_S)
    pids = {await worker_of(decoder), *decoder._decode.idle_pids}
    assert len(pids) == 2
    task = asyncio.create_task(decoder.prepare(ITEM, Sleeps()))
    for _ in range(4000):
        if len(decoder._decode.idle_pids) == 1:
            break
        await asyncio.sleep(0.005)
    decoder.close()
    with pytest.raises(MediaDecodeError, match="took longer"):
        await task
    for pid in pids:
        until_gone(pid)
    assert decoder._decode.idle_pids == []


async def test_a_process_that_cannot_start_is_not_the_callers_fault(start, monkeypatch):
    monkeypatch.setattr(pool_module, "_PROGRAM", "raise SystemExit(1)")
    decoder = start()
    with pytest.raises(EngineError, match="end before they take a picture"):
        await decoder.prepare(ITEM, HandsThrough())
    monkeypatch.undo()
    assert await worker_of(decoder)


@pytest.mark.parametrize("reply", [b"\xff" * 10_000, b"\0\0\0\4abcd", READY])
async def test_a_process_that_talks_nonsense_of_a_picture_is_replaced(start, monkeypatch, reply):
    steps = [f"s.sendall({TAKEN!r})", f"s.sendall({reply!r})", READS_ON]
    monkeypatch.setattr(pool_module, "_PROGRAM", program(*steps))
    decoder = start()
    with pytest.raises(MediaDecodeError, match="gave no usable reply"):
        await decoder.prepare(ITEM, HandsThrough())
    monkeypatch.undo()


def test_sizes_are_known_before_anything_is_allocated():
    heads = [ArrayHead("a", "<f4", (2**40, 2**20)), ArrayHead("b", "|u1", ())]
    assert num_array_bytes(heads) == 2**62 + 1


def test_processes_that_were_never_used_end_silently(capfd):
    PictureDecoder(MediaSettings(decoder="processes")).close()
    assert capfd.readouterr() == ("", "")


def test_processes_end_with_an_owner_that_is_killed():
    program = (
        "import time; from chiasm.media import MediaSettings, PictureDecoder\n"
        "decoder = PictureDecoder(MediaSettings(decoder='processes', decode_threads=2))\n"
        "print(*decoder._decode.idle_pids, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.kill()
    assert len(pids) == 2
    for pid in pids:
        until_gone(pid)
