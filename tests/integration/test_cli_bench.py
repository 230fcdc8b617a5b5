"""`chiasm bench` as a program."""

import asyncio
import json
import sys

from tests.integration.test_bench import delaying

_TIMEOUT_S = 100.0


async def _bench(*words):
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chiasm", "bench", *words, stdout=pipe, stderr=pipe
    )
    async with asyncio.timeout(_TIMEOUT_S):
        out, notes = await process.communicate()
    return process.returncode, out.decode(), notes.decode()


async def test_repeats_give_intervals_and_leave_files(tmp_path):
    words = ("--rate", "50", "--requests", "20", "--repeats", "2", "--output-tokens", "4", "--text-tokens", "8")
    async with delaying() as address:
        _, out, notes = await _bench(address, *words, "--json", "--output", str(tmp_path / "out"))
    found = json.loads(out)
    assert [run["total"]["outcomes"] for run in found["runs"]] == [{"finished": 20}] * 2
    assert "run-0: " in notes
    assert "model delay, without exact answer lengths" not in notes  # the server took the fields
    valid = [run for run in found["runs"] if run["verdict"] == "valid"]
    if valid:  # on a busy machine the client may be the limit, and says so
        assert found["intervals"]["requests/s"]["count"] == len(valid)
    first, second = ((tmp_path / "out" / name / "schedule.jsonl").read_text() for name in ("run-0", "run-1"))
    assert first != second


async def test_peak_throughput_is_a_sentence():
    async with delaying(ttft_s=0.001, tpot_s=0.0) as address:
        status, out, _ = await _bench(address, "--peak", "4", "--requests", "20", "--output-tokens", "4")
    assert status == 0
    assert "Peak throughput with 4 requests open" in out


async def test_goodput_of_a_server_that_never_meets_the_limit_is_zero():
    async with delaying(ttft_s=0.05) as address:
        words = (
            "--goodput",
            "--slo-ttft-ms",
            "1",
            "--rate",
            "200",
            "--requests",
            "10",
            "--warmup",
            "0",
            "--cooldown",
            "0",
        )
        status, out, notes = await _bench(address, *words, "--output-tokens", "4")
    if status:  # a client that was the limit is told instead of a rate
        assert "this client was the limit" in notes
    else:
        assert "Goodput 0 requests/s" in out


async def test_nobody_there_is_one_line():
    status, out, notes = await _bench("http://127.0.0.1:9")
    assert (status, out) == (1, "")
    assert "No answer from http://127.0.0.1:9" in notes
    assert "Traceback" not in notes
