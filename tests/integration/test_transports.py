"""What every transport promises, held against all of them. Two objects in one process stand for two processes here."""

import gc
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.connectors.base import Transport, checksum
from chiasm.connectors.registry import make_transport
from chiasm.errors import HandleExpiredError, OverloadedError, ShuttingDownError, TransferError
from chiasm.settings import TransferSettings
from tests.integration.transport_peer import noise

KINDS = ("shm", "tcp", "file")
MIB = 2**20


def start(kind, folder, max_bytes=8 * MIB, **more):
    return make_transport(TransferSettings(connector=kind, directory=str(folder), max_bytes=max_bytes, **more))


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def pair(kind, tmp_path):
    """Producer and consumer."""
    producer, consumer = start(kind, tmp_path), start(kind, tmp_path)
    yield producer, consumer
    consumer.close()
    producer.close()


@pytest.mark.parametrize("num_bytes", [1, 4095, 4097, 128 * 1024, MIB, 5 * MIB + 3])
def test_bytes_arrive_unchanged_and_read_only(pair, kind, num_bytes):
    producer, consumer = pair
    data = noise(num_bytes, num_bytes)
    taken = consumer.get(producer.put("a", data, ttl_s=60), num_bytes, timeout_s=10)
    assert bytes(taken) == data
    assert memoryview(taken).readonly
    assert memoryview(taken).format == "B"
    assert (producer.kind, consumer.kind) == (kind, kind)


def test_an_offer_is_a_copy(pair):
    producer, consumer = pair
    data = bytearray(noise(1, 300_000))
    address, before = producer.put("a", memoryview(data), ttl_s=60), bytes(data)
    data[:] = bytes(len(data))
    assert bytes(consumer.get(address, len(data), timeout_s=10)) == before


def test_arrays_of_any_type_and_shape_are_taken_as_bytes(pair):
    producer, consumer = pair
    data = memoryview(noise(1, 480)).cast("f", (2, 3, 20))
    assert bytes(consumer.get(producer.put("a", data, ttl_s=60), 480, timeout_s=10)) == data.tobytes()


def test_a_producer_may_take_its_own(pair):
    producer, _ = pair
    assert bytes(producer.get(producer.put("a", b"abc", ttl_s=60), 3, timeout_s=10)) == b"abc"


def test_a_tensor_may_be_taken_many_times(pair):
    producer, consumer = pair
    address = producer.put("a", noise(1, MIB), ttl_s=60)
    taken = [consumer.get(address, MIB, timeout_s=10) for _ in range(5)]
    assert {checksum(data) for data in taken} == {checksum(noise(1, MIB))}


def test_putting_the_same_again_keeps_the_address_good(pair):
    producer, consumer = pair
    first = producer.put("a", noise(1, MIB), ttl_s=60)
    second = producer.put("a", noise(1, MIB), ttl_s=60)
    assert producer.num_offered == 1
    for address in (first, second):
        assert checksum(consumer.get(address, MIB, timeout_s=10)) == checksum(noise(1, MIB))


def wait_for(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_putting_again_prolongs(pair):
    producer, consumer = pair
    address = producer.put("a", b"abc", ttl_s=60)
    producer.put("a", b"abc", ttl_s=0.01)
    wait_for(lambda: producer.num_offered == 0)
    with pytest.raises(HandleExpiredError):
        consumer.get(address, 3, timeout_s=10)
    for number in range(100):  # a slow machine may be too late to renew
        address = producer.put(str(number), b"abc", ttl_s=0.5)
        expires_at = time.monotonic() + 0.5
        if producer.put(str(number), b"abc", ttl_s=60) == address:
            break
    wait_for(lambda: time.monotonic() > expires_at)
    assert bytes(consumer.get(address, 3, timeout_s=10)) == b"abc"


@pytest.mark.parametrize("other", [b"abd", b"abcd"])
def test_other_bytes_under_a_key_replace_the_old_ones_and_are_never_taken_for_them(pair, other):
    producer, consumer = pair
    old, new = producer.put("a", b"abc", ttl_s=60), producer.put("a", other, ttl_s=60)
    assert producer.num_offered == 1
    assert bytes(consumer.get(new, len(other), timeout_s=10)) == other
    with pytest.raises(HandleExpiredError):
        consumer.get(old, 3, timeout_s=10)


def test_what_has_expired_is_not_handed_out_and_makes_room(kind, tmp_path):
    producer, consumer = start(kind, tmp_path, MIB), start(kind, tmp_path)
    try:
        address = producer.put("a", noise(1, MIB), ttl_s=0.01)
        expires_at = time.time() + 0.01
        wait_for(lambda: time.time() > expires_at)
        with pytest.raises(HandleExpiredError):
            consumer.get(address, MIB, timeout_s=10)
        fresh = producer.put("b", noise(2, MIB), ttl_s=60)
        assert producer.num_offered == 1
        assert checksum(consumer.get(fresh, MIB, timeout_s=10)) == checksum(noise(2, MIB))
        with pytest.raises(HandleExpiredError):
            consumer.get(address, MIB, timeout_s=10)
    finally:
        consumer.close()
        producer.close()


def test_the_quota_is_exact_and_what_is_dropped_counts_no_more(kind, tmp_path):
    producer = start(kind, tmp_path, MIB)
    try:
        for number in range(4):
            producer.put(str(number), noise(number, MIB // 4), ttl_s=60)
        with pytest.raises(OverloadedError) as caught:
            producer.put("4", b"x", ttl_s=60)
        assert caught.value.hint
        producer.drop("1")
        producer.drop("1")
        producer.drop("never there")
        producer.put("4", noise(4, MIB // 4), ttl_s=60)
        assert producer.num_offered == 4
        with pytest.raises(OverloadedError):
            producer.put("5", noise(5, 2 * MIB), ttl_s=60)
    finally:
        producer.close()


def test_what_is_dropped_cannot_be_taken(pair):
    producer, consumer = pair
    address = producer.put("a", noise(1, MIB), ttl_s=60)
    producer.drop("a")
    assert producer.num_offered == 0
    with pytest.raises(HandleExpiredError):
        consumer.get(address, MIB, timeout_s=10)


def test_what_its_reader_has_released_makes_room_long_before_it_expires(kind, tmp_path):
    producer, consumer = start(kind, tmp_path, MIB), start(kind, tmp_path)
    try:
        kept = producer.put("kept", noise("kept", MIB // 4), ttl_s=3600)
        for number in range(12):
            address = producer.put(str(number), noise(number, MIB // 2), ttl_s=3600)
            taken = consumer.get(address, MIB // 2, timeout_s=10)
            for _ in range(2):  # saying it again is harmless
                consumer.release(address, timeout_s=10)
            with pytest.raises(HandleExpiredError):
                consumer.get(address, MIB // 2, timeout_s=10)
            assert bytes(taken) == noise(number, MIB // 2)
            del taken
        assert producer.num_offered == 1
        assert bytes(consumer.get(kept, MIB // 4, timeout_s=10)) == noise("kept", MIB // 4)
    finally:
        consumer.close()
        producer.close()


def test_a_view_outlives_the_release_of_its_tensor(pair):
    producer, consumer = pair
    taken = consumer.get(address := producer.put("a", noise("a", MIB), ttl_s=60), MIB, timeout_s=10)
    consumer.release(address, timeout_s=10)
    for number in range(12):
        producer.put("b", noise(number, MIB), ttl_s=60)
    assert bytes(taken) == noise("a", MIB)


def test_what_is_put_again_after_a_release_is_offered_again(pair):
    producer, consumer = pair
    consumer.release(producer.put("a", b"abc", ttl_s=60), timeout_s=10)
    assert producer.num_offered == 0
    assert bytes(consumer.get(producer.put("a", b"abc", ttl_s=60), 3, timeout_s=10)) == b"abc"


def test_an_old_release_means_nothing_to_what_has_taken_the_place(pair):
    producer, consumer = pair
    old = producer.put("a", b"abc", ttl_s=60)
    producer.drop("a")
    new = producer.put("b", b"def", ttl_s=60)
    consumer.release(old, timeout_s=10)
    assert producer.num_offered == 1
    assert bytes(consumer.get(new, 3, timeout_s=10)) == b"def"


def test_releasing_what_a_closed_producer_offered_is_harmless(kind, tmp_path):
    producer, consumer = start(kind, tmp_path), start(kind, tmp_path)
    address = producer.put("a", b"abc", ttl_s=60)
    producer.close()
    consumer.release(address, timeout_s=10)
    consumer.close()
    with pytest.raises(TransferError):
        consumer.release(address, timeout_s=10)


def test_bytes_taken_stay_what_they_are(pair):
    producer, consumer = pair
    taken = {}
    for number in range(60):
        address = producer.put(str(number), noise(number, MIB // 2), ttl_s=60)
        if number % 10 == 0:
            taken[number] = memoryview(consumer.get(address, MIB // 2, timeout_s=10))[17:]
        producer.drop(str(number))
    producer.close()
    consumer.close()
    assert all(bytes(data) == noise(number, MIB // 2)[17:] for number, data in taken.items())


def test_a_closed_transport_offers_and_takes_nothing(kind, tmp_path):
    producer, consumer = start(kind, tmp_path), start(kind, tmp_path)
    address = producer.put("a", noise(1, MIB), ttl_s=60)
    assert checksum(consumer.get(address, MIB, timeout_s=10)) == checksum(noise(1, MIB))
    producer.close()
    producer.close()
    producer.drop("a")
    assert producer.num_offered == 0
    with pytest.raises(HandleExpiredError):
        consumer.get(address, MIB, timeout_s=10)
    with pytest.raises(ShuttingDownError):
        producer.put("a", b"abc", ttl_s=60)
    consumer.close()
    with pytest.raises(TransferError):
        consumer.get(address, MIB, timeout_s=10)
    assert not list(tmp_path.iterdir())
    assert not list(Path("/dev/shm").glob(f"chiasm-*-{os.getpid()}-*"))


@pytest.mark.parametrize("num_bytes", [-1, 0, 1, MIB - 1, MIB + 1, 2**40, 2**70])
def test_another_size_than_announced_is_refused(pair, num_bytes):
    producer, consumer = pair
    address = producer.put("a", noise(1, MIB), ttl_s=60)
    with pytest.raises(TransferError):
        consumer.get(address, num_bytes, timeout_s=10)
    assert checksum(consumer.get(address, MIB, timeout_s=10)) == checksum(noise(1, MIB))


@pytest.fixture(scope="module")
def offering(tmp_path_factory):
    """One of each kind, with an offer: kind -> transport, address."""
    folder = tmp_path_factory.mktemp("offers")
    (folder / "secret").write_text("secret")
    transports = {kind: start(kind, folder) for kind in KINDS}
    yield {kind: (transport, transport.put("a", b"abc", ttl_s=600)) for kind, transport in transports.items()}
    for transport in transports.values():
        transport.close()


HOSTILE = ["", "/", ".", "..", "secret", "../secret", "/etc/passwd", "//etc/passwd", "a\0b", "\ud800", "x" * 100_000]


def hostile_addresses():
    """Anything, and how to exchange a part of a real address: (where, how many characters, by what)."""
    mutations = st.tuples(st.integers(0, 80), st.integers(0, 80), st.text("0123456789abcdef/.-:\0 ", max_size=12))
    return st.one_of(st.sampled_from(HOSTILE), st.text(max_size=80), mutations)


@settings(max_examples=300, deadline=None)
@given(address=hostile_addresses())
def test_an_address_from_outside_opens_nothing_but_what_is_offered(offering, address):
    for transport, real in offering.values():
        text = address
        if isinstance(address, tuple):
            at, size, inserted = address
            text = real[:at] + inserted + real[at + size :]
        if text == real or not reaches_only_here(text, real):
            continue
        with suppress(TransferError):  # any other error is a failure
            assert bytes(transport.get(text, 3, timeout_s=0.2)) == b"abc"  # another way to write the same place
            continue
        with suppress(TransferError):
            transport.release(text, timeout_s=0.2)  # nothing was taken there, so nothing is lost there either
        assert transport.num_offered == 1


def reaches_only_here(text, real):
    """Whether it leads to no other server: a test connects nowhere else."""
    return text.startswith(real.split("/")[0] + "/") or not re.match(r"[0-9\[]", text)


def test_thousands_of_tensors_leave_no_trace(pair):
    producer, consumer = pair
    process = psutil.Process()
    data = [noise(number, 40_000 + number) for number in range(7)]
    used = {}
    for number in range(4000):
        part = data[number % 7]
        address = producer.put(str(number), part, ttl_s=60)
        if number % 4 == 0:
            assert bytes(consumer.get(address, len(part), timeout_s=10)) == part
        producer.drop(str(number))
        if number in (1000, 3999):
            gc.collect()
            used[number] = process.memory_info().rss, process.num_fds(), process.num_threads()
    assert producer.num_offered == 0
    assert used[3999][0] < used[1000][0] + 8 * MIB
    assert used[3999][1] <= used[1000][1]
    assert used[3999][2] <= used[1000][2]


def test_many_threads_put_take_and_drop_at_once(pair):
    producer, consumer = pair
    failures = []

    def work(worker):
        try:
            for number in range(40):
                key, size = f"{worker}-{number}", 1 + (worker * 7919 + number * 104_729) % 300_000
                data = noise(key, size)
                taken = consumer.get(producer.put(key, data, ttl_s=60), size, timeout_s=60)
                producer.drop(key)
                assert bytes(taken) == data
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures
    assert producer.num_offered == 0


def test_the_registry_gives_what_the_contract_names(kind, tmp_path):
    transport: Transport = start(kind, tmp_path)
    transport.close()
    assert transport.kind == kind
