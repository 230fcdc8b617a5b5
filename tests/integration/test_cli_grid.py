"""`chiasm bench grid` as a program, on servers that are there already."""

import asyncio
import json
import sys

from tests.integration.test_bench import delaying

_TIMEOUT_S = 100.0
GRID = """
title = "Two delays"
images = [0, 2]
tokens = [64]
outputs = [4]
loads = [0.2]
caches = ["cold", "warm"]
seeds = 2
seconds = 0.5
warmup_seconds = 0.1
capacity_requests = 8
[[topology]]
name = "agg"
url = "{slow}"
[[topology]]
name = "split"
url = "{fast}"
"""


async def _grid(*words):
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chiasm", "bench", "grid", *words, stdout=pipe, stderr=pipe
    )
    async with asyncio.timeout(_TIMEOUT_S):
        out, notes = await process.communicate()
    return process.returncode, out.decode(), notes.decode()


async def test_the_faster_of_two_servers_is_better_in_every_cell_and_nothing_is_measured_twice(tmp_path):
    file, output = tmp_path / "grid.toml", tmp_path / "out"
    async with delaying(ttft_s=0.2) as slow, delaying(ttft_s=0.02) as fast:
        file.write_text(GRID.format(slow=slow, fast=fast))
        status, out, notes = await _grid(str(file), "--output", str(output), "--json")
        assert status == 0, notes
        report = json.loads(out)
        again, _, refusal = await _grid(str(file), "--output", str(output))
    assert (again, "--resume" in refusal) == (2, True)
    assert len(report["cells"]) == 3  # text; pictures cold, and warm
    assert report["num_failed"] == 0
    for cell in report["cells"]:
        assert cell["num_seeds"] == 2
        gain = cell["topologies"]["split"]["gain"]["ttft"]
        assert gain["low"] > 0
    assert {"report.html", "report.md", "report.json", "runs.jsonl"} == {path.name for path in output.iterdir()}
    status, _, notes = await _grid(str(file), "--output", str(output), "--resume")  # the servers are gone
    assert (status, "Everything has been measured" in notes) == (0, True)


async def test_a_server_that_does_not_start_is_one_error(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text('loads = [0.5]\n[[topology]]\nname = "agg"\nserve = ["--topology", "nonsense"]\n')
    status, out, notes = await _grid(str(file), "--output", str(tmp_path / "out"))
    assert (status, out) == (1, "")
    assert "The server of 'agg' did not start" in notes
    assert "Traceback" not in notes
