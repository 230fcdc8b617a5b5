"""Turns of `benchmarks.vllm_ec`, run by the interpreter that has vLLM: prints one JSON row a turn.

Both connectors do in one process what they do in a vLLM server: the producer's worker publishes from the encoder
cache, the consumer takes the embedding into another encoder cache. Chiasm's consumer also does what the example's
does not: it checks grid, layout, revision and every byte before a request is let in.
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from vllm.config import ECTransferConfig
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.example_connector import (
    ECExampleConnector,
    ECExampleConnectorMetadata,
    MMMeta,
)

from chiasm.connectors.shm.transport import ShmTransport
from chiasm.connectors.tcp.client import Client
from chiasm.engines.vllm.ec.admission import Admission
from chiasm.engines.vllm.ec.announcement import Expected, Wanted, sealed
from chiasm.engines.vllm.ec.counters import Counters
from chiasm.engines.vllm.ec.engine_folder import engine_folder
from chiasm.engines.vllm.ec.forget_mark import ForgetMark
from chiasm.engines.vllm.ec.options import EcOptions
from chiasm.engines.vllm.ec.pulls import Pulls
from chiasm.engines.vllm.ec.receipts import read_receipt
from chiasm.engines.vllm.ec.verified_store import VerifiedStore
from chiasm.engines.vllm.metadata import StepOrders
from chiasm.engines.vllm.worker_side import LoadingWorker, PublishingWorker

WIDTH = 2048
REVISION = "benchmark"
MAX_BYTES = 2**26  # few turns fill it: from then on memory is used again, as in a server that has run for a while
NUM_WARM_TURNS = 4
WAIT_S = 30.0


class ExampleWay:
    """vLLM's ECExampleConnector over a folder in memory."""

    def __init__(self, folder: str) -> None:
        self._producer, self._consumer = self._side(folder, "ec_producer"), self._side(folder, "ec_consumer")

    def publish(self, identity: str, cache: dict[str, torch.Tensor]) -> None:
        self._producer.save_caches(cache, identity)

    def take(self, identity: str, cache: dict[str, torch.Tensor]) -> None:
        assert self._consumer.has_cache_item(identity)
        orders = ECExampleConnectorMetadata()
        orders.add_mm_data(MMMeta.make_meta(identity, 1))
        self._consumer.bind_connector_metadata(orders)
        self._consumer.start_load_caches(cache)

    def _side(self, folder: str, role: str) -> ECExampleConnector:
        transfer = ECTransferConfig(
            ec_connector="ECExampleConnector", ec_role=role, ec_connector_extra_config={"shared_storage_path": folder}
        )
        config: Any = SimpleNamespace(ec_transfer_config=transfer, model_config=None)
        return ECExampleConnector(config, ECConnectorRole.WORKER)


class ChiasmWay:
    """Chiasm's connector over one of its transports, through admission and all of its checks."""

    def __init__(self, folder: str, transport: str) -> None:
        options = EcOptions(transport=transport, max_bytes=MAX_BYTES, directory=folder, hold_s=0.0)
        self._worker = PublishingWorker(options, transport, REVISION)
        self._receipts = engine_folder(folder, transport)
        self._own = ShmTransport(max_bytes=MAX_BYTES)
        store, counters = VerifiedStore(self._own, MAX_BYTES), Counters()
        fetches = {"shm": lambda a, n, t: self._own.get(a, n, timeout_s=t), "tcp": Client().get}
        self._pulls = Pulls(fetches, store, counters)
        expected = Expected(width=WIDTH, dtype="bfloat16", revision=REVISION)
        self._admission = Admission(store, self._pulls, counters, expected, wait_s=WAIT_S)
        self._loader = LoadingWorker(torch.device("cpu"), ForgetMark(Path(folder)))

    def publish(self, identity: str, cache: dict[str, torch.Tensor]) -> None:
        self._worker.publish(identity, cache[identity])

    def take(self, identity: str, cache: dict[str, torch.Tensor]) -> None:
        receipt = read_receipt(self._receipts, identity, time.monotonic())
        assert receipt is not None
        assert receipt.announcement is not None
        rows = receipt.announcement.layout.shape[0]
        metadata = {"image_grid_thw": [1, 1, rows]}
        said = msgspec.to_builtins(sealed(receipt.announcement, identity, metadata))
        params = json.loads(json.dumps({identity: {"metadata": metadata, "chiasm": said}}))
        item = Wanted(identity=identity, num_rows=rows, end=rows, metadata=metadata)
        while not self._admission.is_ready(identity, [item], params):
            self._pulls.wait_any(WAIT_S)
        stored = self._admission.held(identity, identity)
        assert stored is not None
        self._loader.load(StepOrders(loads={identity: stored}), cache)
        self._admission.forget(identity)

    def close(self) -> None:
        self._pulls.close()
        self._worker.close()
        self._own.close()


def main() -> None:
    num_turns, *sizes = map(int, sys.argv[1:])
    shuffle = random.Random(0).sample
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        ways: dict[str, Any] = {
            "example": ExampleWay(folder),
            "chiasm shm": ChiasmWay(folder, "shm"),
            "chiasm tcp": ChiasmWay(folder, "tcp"),
        }
        for turn in range(-NUM_WARM_TURNS, num_turns):
            for num_bytes in sizes:
                tensor = torch.randn(num_bytes // WIDTH // 2, WIDTH, dtype=torch.bfloat16)
                for name in shuffle(list(ways), len(ways)):
                    row = _turn(ways[name], f"{num_bytes}-{turn}", tensor)
                    if turn >= 0:
                        print(json.dumps({"way": name, "bytes": num_bytes, "turn": turn} | row), flush=True)
        for name in ("chiasm shm", "chiasm tcp"):
            ways[name].close()


def _turn(way: Any, identity: str, tensor: torch.Tensor) -> dict[str, float]:
    made, taken = {identity: tensor}, {}
    target = torch.ones_like(tensor)
    points = [(time.perf_counter(), time.process_time())]
    way.publish(identity, made)
    points.append((time.perf_counter(), time.process_time()))
    way.take(identity, taken)
    target.copy_(taken[identity])  # the example only maps a file: reading it comes with the model's step
    points.append((time.perf_counter(), time.process_time()))
    assert torch.equal(target, tensor)
    (t0, c0), (t1, _), (t2, c2) = points
    times_s = {"publish_ms": t1 - t0, "take_ms": t2 - t1, "hand_over_ms": t2 - t0, "cpu_ms": c2 - c0}
    return {name: 1e3 * time_s for name, time_s in times_s.items()}


if __name__ == "__main__":
    main()
