"""Transports between real processes, which may be killed at any time."""

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from chiasm.connectors.base import checksum
from chiasm.connectors.shm.transport import ShmTransport
from chiasm.errors import HandleExpiredError, TransferError
from tests.integration.test_transports import KINDS, MIB, noise, start, wait_for
from tests.integration.transport_peer import Peer


def peer(kind, folder, **more):
    return Peer(connector=kind, directory=str(folder), max_bytes=16 * MIB, **more)


def arenas_of(pid):
    return list(Path("/dev/shm").glob(f"chiasm-*-{pid}-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_takes_what_is_offered_and_offers_what_is_taken(kind, tmp_path):
    ours = start(kind, tmp_path)
    with peer(kind, tmp_path) as other:
        for number, num_bytes in enumerate((1, 65_536, MIB, 3 * MIB + 1)):
            address = ours.put(str(number), noise(number, num_bytes), ttl_s=60)
            assert other.ask(op="get", address=address, num_bytes=num_bytes) == {
                "checksum": checksum(noise(number, num_bytes))
            }
            offered = other.ask(op="put", key=str(number), seed=-number, num_bytes=num_bytes)
            taken = ours.get(offered["address"], num_bytes, timeout_s=10)
            assert checksum(taken) == offered["checksum"]
        assert other.ask(op="get", address=address, num_bytes=5) == {"error": "TransferError"}
        ours.drop("3")
        assert other.ask(op="get", address=address, num_bytes=num_bytes) == {"error": "HandleExpiredError"}
    ours.close()


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_a_killed_producer_is_a_coded_error_in_time_and_leaves_nothing(kind, tmp_path):
    ours = start(kind, tmp_path)
    with peer(kind, tmp_path) as other:
        offered = other.ask(op="put", key="a", seed=1, num_bytes=MIB)
        kept = ours.get(offered["address"], MIB, timeout_s=10)
        other.kill()
        with suppress(HandleExpiredError):  # shared memory outlives its process until the next one starts
            assert checksum(ours.get(offered["address"], MIB, timeout_s=5)) == offered["checksum"]
            assert kind == "shm"
        start(kind, tmp_path).close()
        with pytest.raises(HandleExpiredError):
            ours.get(offered["address"], MIB, timeout_s=5)
        assert checksum(kept) == offered["checksum"]
        assert not arenas_of(other.pid)
    ours.close()


def test_a_producer_killed_while_it_is_read_and_written_gives_whole_tensors_or_errors(tmp_path):
    ours = start("shm", tmp_path)
    with peer("shm", tmp_path) as other:
        offers = [other.ask(op="put", key=str(n), seed=n, num_bytes=MIB) for n in range(4)]
        seen, stop = [], threading.Event()

        def read():
            while not stop.is_set():
                for offered in offers:
                    try:
                        data = ours.get(offered["address"], MIB, timeout_s=5)
                        seen.append(checksum(data) == offered["checksum"])
                    except TransferError:
                        seen.append(None)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: len(seen) > 20)
        other.kill()
        start("shm", tmp_path).close()
        wait_for(lambda: None in seen)
        stop.set()
        reader.join(30)
        assert set(seen) == {True, None}
        assert not arenas_of(other.pid)
    ours.close()


def test_a_reader_keeps_its_view_while_the_producer_goes_on_and_gives_it_back(tmp_path):
    ours = ShmTransport(max_bytes=2 * MIB)
    try:
        with peer("shm", tmp_path) as other:
            address = ours.put("held", noise("held", MIB), ttl_s=60)
            held = other.ask(op="hold", address=address, num_bytes=MIB)
            ours.drop("held")
            assert other.ask(op="get", address=address, num_bytes=MIB) == {"error": "HandleExpiredError"}
            for number in range(20):
                ours.put(str(number), noise(number, MIB), ttl_s=60)
                ours.drop(str(number))
            assert other.ask(op="check_held") == {"checksums": [held["checksum"]]}
            assert free_bytes(ours) == 3 * MIB
            other.ask(op="release")
            ours.put("next", b"x", ttl_s=60)
            ours.drop("next")
            assert free_bytes(ours) == 4 * MIB
    finally:
        ours.close()


def free_bytes(transport):
    return transport._producer._extents.num_free_bytes


def test_a_killed_reader_gives_its_views_back(tmp_path):
    ours = ShmTransport(max_bytes=2 * MIB)
    try:
        with peer("shm", tmp_path) as other:
            for key in ("a", "b"):
                other.ask(op="hold", address=ours.put(key, noise(key, MIB), ttl_s=60), num_bytes=MIB)
                ours.drop(key)
            assert free_bytes(ours) == 2 * MIB + (MIB if has_copied(ours) else 0)
            other.kill()
            ours.put("c", noise("c", 2 * MIB), ttl_s=60)
            assert free_bytes(ours) == 2 * MIB
    finally:
        ours.close()


def has_copied(transport):
    """A reader takes one view of any size, and more only of a large arena."""
    return len(transport._producer._lent) == 1


def test_a_start_removes_arenas_of_dead_processes_only(tmp_path):
    with peer("shm", tmp_path) as alive, peer("shm", tmp_path) as dead:
        address = alive.ask(op="put", key="a", seed=1, num_bytes=MIB)["address"]
        assert arenas_of(dead.pid)
        dead.kill()
        ours = ShmTransport(max_bytes=MIB)
        try:
            assert not arenas_of(dead.pid)
            assert arenas_of(alive.pid)
            assert bytes(ours.get(address, MIB, timeout_s=5)) == noise(1, MIB)
        finally:
            ours.close()
    assert not arenas_of(alive.pid)
