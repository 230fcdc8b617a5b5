"""Embeddings, announcements and a consumer's parts for the tests of this folder."""

from chiasm.connectors.base import checksum
from chiasm.engines.vllm.ec.admission import Admission
from chiasm.engines.vllm.ec.announcement import Announcement, Expected, Layout, Wanted, sealed
from chiasm.engines.vllm.ec.counters import Counters
from chiasm.engines.vllm.ec.pulls import Pulls
from chiasm.engines.vllm.ec.verified_store import VerifiedStore
from chiasm.errors import HandleExpiredError, OverloadedError

WIDTH = 8
GRID = {"image_grid_thw": [1, 4, 4]}
LAYOUT = Layout(shape=(4, WIDTH), dtype="float32", revision="rev")
EXPECTED = Expected(width=WIDTH, dtype="float32", revision="rev", merge_size=2)
NUM_BYTES = LAYOUT.num_bytes


def embedding(seed: int) -> bytes:
    return bytes([seed]) * NUM_BYTES


def announcement(data: bytes, identity: str, metadata=GRID, **fields) -> Announcement:
    said = {"transport": "shm", "address": identity, "layout": LAYOUT, "checksum": checksum(data)} | fields
    return sealed(Announcement(**said), identity, metadata)


def wanted(identity: str, *, num_rows=4, metadata=GRID, end=10, has_media=False) -> Wanted:
    return Wanted(identity=identity, num_rows=num_rows, end=end, metadata=metadata, has_media=has_media)


class Memory:
    """A transport's own offers with a quota, and what producers offer: `get` of the latter never waits."""

    kind = "shm"

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.own: dict[str, bytes] = {}
        self.offered: dict[str, bytes] = {}
        self.num_fetches = 0

    def put(self, key, data, *, ttl_s):
        if len(data) + sum(len(held) for name, held in self.own.items() if name != key) > self.max_bytes:
            raise OverloadedError("full")
        self.own[key] = bytes(data)
        return f"own/{key}"

    def drop(self, key):
        self.own.pop(key, None)

    def close(self):
        self.own.clear()

    def fetch(self, address, num_bytes, timeout_s):
        self.num_fetches += 1
        if address not in self.offered:
            raise HandleExpiredError("gone")
        return self.offered[address]


class Consumer:
    """An `Admission` over a `Memory`, with a clock that is set by hand."""

    def __init__(self, max_bytes: int = 10 * NUM_BYTES, wait_s: float = 2.0) -> None:
        self.now = 0.0
        self.memory = Memory(max_bytes)
        self.store = VerifiedStore(self.memory, max_bytes)
        self.counters = Counters()
        self.pulls = Pulls({"shm": self.memory.fetch}, self.store, self.counters, num_threads=2, clock=lambda: self.now)
        self.admission = Admission(
            self.store, self.pulls, self.counters, EXPECTED, wait_s=wait_s, clock=lambda: self.now
        )

    def close(self) -> None:
        self.pulls.close()
