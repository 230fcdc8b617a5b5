"""AIPerf and this load generator on one server of known delays; and AIPerf on the files that we write."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from benchmarks.aiperf_agreement import FIGURES, reads, with_aiperf, with_ours
from chiasm.bench.grid.servers import Server
from chiasm.bench.grid.spec import Topology
from chiasm.bench.probe import probe
from chiasm.bench.target import parse_target
from chiasm.bench.workload.bodies import BodyMaker
from chiasm.bench.workload.classes import RequestClass
from tests.integration.test_bench import delaying

AIPERF = os.environ.get("CHIASM_TEST_AIPERF") or shutil.which("aiperf")

pytestmark = [
    pytest.mark.skipif(
        AIPERF is None, reason="AIPerf is not installed (its own environment; CHIASM_TEST_AIPERF names the command)"
    ),
    pytest.mark.timeout(400),
]


async def test_both_measure_the_same_delays_and_aiperf_reads_our_files(tmp_path):
    kind = RequestClass(text_tokens=16, output_tokens=8)
    async with delaying(ttft_s=0.1, tpot_s=0.02, num_tokens=8) as address:
        target = parse_target(address)
        server = Server(Topology(name="delay", url=address), target, await probe(target, {"chat"}, None))
        maker = BodyMaker((kind,), server.dialect, "0")
        bodies = [maker.make(kind, index) for index in range(20)]
        theirs = await asyncio.to_thread(with_aiperf, AIPERF, server, bodies, 10.0, tmp_path)
        ours = await with_ours(server, bodies, 10.0, tmp_path)
    told_ms = dict(zip(FIGURES, (100, 20, 240), strict=True))
    for figure, told in told_ms.items():  # a server cannot be early; a busy machine is late
        assert 0.98 * told <= ours[figure] < 2 * told
        assert 0.98 * told <= theirs[figure] < 2 * told
    assert reads(AIPERF, tmp_path) == ""
    lines = (Path(tmp_path) / "profile_export.jsonl").read_text().splitlines()
    assert len(lines) == 20
    assert json.loads(lines[0])["metadata"]["worker_id"]
