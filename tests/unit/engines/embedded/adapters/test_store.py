"""Which adapters are in memory: budget, order of eviction, pins, and loads that keep nobody else waiting."""

import struct
import threading
from dataclasses import dataclass, replace

import pytest

from chiasm.adapters.files import WEIGHTS_NAME, read_adapter
from chiasm.engines.embedded.adapters import store as store_module
from chiasm.engines.embedded.adapters import weights
from chiasm.engines.embedded.adapters.store import AdapterStore
from chiasm.errors import AdapterError, LayoutMismatchError, OverloadedError
from chiasm.protocol.adapters import AdapterLoad
from chiasm.settings import AdapterSettings
from tests.unit.adapters.adapter_files import BASE, safetensors, shapes, write

SIZE = 400_000


@dataclass(eq=False)
class Arranged:
    """Takes so much memory."""

    num_bytes: int = SIZE


class Store(AdapterStore):
    """Room for two of the adapters of a folder, named by number."""

    def __init__(self, root):
        self.root = root
        self.gate = threading.Event()
        self.gate.set()
        self.num_arranging = 0
        super().__init__(self.arranged, BASE, AdapterSettings(roots=(str(root),), max_bytes=2**20))

    def arranged(self, layers):
        self.num_arranging += 1
        assert self.gate.wait(20)
        return Arranged()

    def loaded(self, number):
        folder = write(self.root / str(number), lora_alpha=number + 1)
        return self.load(AdapterLoad(name=f"a{number}", directory=str(folder))).ref

    def has(self, *refs):
        found = []
        for ref in refs:
            lease = self.try_acquire(ref)
            found.append(lease is not None)
            if lease is not None:
                lease.close()
        return found


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_the_least_recently_used_goes_and_comes_back_when_it_is_used(store):
    one, two = store.loaded(1), store.loaded(2)
    store.acquire(one).close()
    three = store.loaded(3)
    assert (store.num_resident, store.num_bytes, store.num_evicted) == (2, 2 * SIZE, 1)
    assert store.try_acquire(two) is None
    store.acquire(two).close()
    assert store.has(two, three, one) == [True, True, False]
    assert store.num_loads == 4


def test_what_is_in_use_stays(store):
    one, two = store.loaded(1), store.loaded(2)
    leases = [store.acquire(one), store.acquire(one), store.acquire(two)]
    with pytest.raises(OverloadedError, match="in use"):
        store.loaded(3)
    leases[0].close()
    leases[0].close()  # once is enough
    with pytest.raises(OverloadedError, match="in use"):
        store.loaded(3)
    leases[1].close()
    store.loaded(3)
    assert store.try_acquire(one) is None
    leases[2].close()


def test_memory_is_told_as_long_as_there_is_some(store):
    assert store.memory_parts() == ()
    one = store.loaded(1)
    (part,) = store.memory_parts()
    assert (part.name, part.used_bytes, part.reserved_bytes) == ("adapters", SIZE, 2**20)
    store.unload(one)
    assert store.memory_parts() == ()


def test_what_is_unloaded_goes_with_its_last_request(store):
    one = store.loaded(1)
    lease, other = store.acquire(one), store.acquire(one)
    store.unload(one)
    lease.close()
    assert store.num_bytes == SIZE
    other.close()
    assert (store.num_resident, store.num_bytes) == (0, 0)
    store.unload(one)  # harmless


def test_what_is_loaded_again_while_it_goes_stays(store):
    one = store.loaded(1)
    lease = store.acquire(one)
    store.unload(one)
    store.loaded(1)
    lease.close()
    assert store.num_resident == 1


def test_a_load_under_way_keeps_nobody_waiting_who_has_his_adapter(store):
    one, two = store.loaded(1), write(store.root / "2", lora_alpha=3)
    store.gate.clear()
    loading = threading.Thread(target=store.load, args=(AdapterLoad(name="a2", directory=str(two)),))
    loading.start()
    try:
        lease = store.try_acquire(one)
        assert lease is not None
        lease.close()
        store.unload(one)
    finally:
        store.gate.set()
        loading.join(20)
    assert store.num_resident == 1


def test_many_that_want_the_same_read_it_once(store):
    one = store.loaded(1)
    store.unload(one)
    before, leases = store.num_loads, []
    threads = [threading.Thread(target=lambda: leases.append(store.acquire(one))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(leases), store.num_loads - before) == (8, 1)


def test_files_that_changed_are_not_what_was_meant(store):
    one = store.loaded(1)
    store.unload(one)
    write(store.root / "1", lora_alpha=9)
    with pytest.raises(LayoutMismatchError, match="revision"):
        store.acquire(one)


@pytest.mark.parametrize("number", [float("nan"), float("-inf"), 3e38])
def test_numbers_that_are_not_finite_are_refused_also_when_the_scale_makes_them(store, number):
    folder = write(store.root / "1")
    data = bytearray((folder / WEIGHTS_NAME).read_bytes())
    data[-4:] = struct.pack("<f", number)
    (folder / WEIGHTS_NAME).write_bytes(data)
    with pytest.raises(AdapterError, match="not finite"):
        store.load(AdapterLoad(name="a", directory=str(folder)))
    assert (store.num_resident, store.num_arranging) == (0, 0)


def test_an_adapter_larger_than_all_room_is_refused(tmp_path):
    store = AdapterStore(lambda layers: Arranged(2**21), BASE, AdapterSettings(roots=(str(tmp_path),), max_bytes=2**20))
    folder = write(tmp_path / "1")
    with pytest.raises(AdapterError, match="takes"):
        store.load(AdapterLoad(name="a", directory=str(folder)))
    assert (store.num_resident, store.num_bytes) == (0, 0)


def test_what_an_adapter_will_take_is_known_before_it_takes_it(tmp_path, monkeypatch):
    """In float16, and where not all projections of a part are adapted, files are much smaller than what they become."""
    base = replace(BASE, hidden=8192, attention=8192, key_value=1024)
    stored = shapes(outputs=8192, inputs=8192, rank=8) | shapes(1, "self_attn.o_proj", 8192, 8192, rank=8)
    folder = write(tmp_path / "1", safetensors(stored, dtype="F16", size=2), r=8)
    files = read_adapter(str(folder), base, AdapterSettings(roots=(str(tmp_path),)))
    layers = weights.adapter_layers(files, base)
    taken = sum(one.shrink.nbytes + one.expand.nbytes for layer in layers for one in layer.values())
    assert weights.num_bytes_of(files, base) == taken > 2**20 > len(files.data)
    monkeypatch.setattr(store_module, "adapter_layers", lambda *_: pytest.fail("memory was taken"))
    store = AdapterStore(lambda layers: Arranged(0), base, AdapterSettings(roots=(str(tmp_path),), max_bytes=2**20))
    with pytest.raises(AdapterError, match="takes"):
        store.load(AdapterLoad(name="a", directory=str(folder)))
