import numpy as np
import pytest

from benchmarks import ec_transfer, render
from benchmarks.transfer_ways import PlainMemory
from tests.unit.benchmarks.test_render import MACHINE

WAYS = ("memcpy", "shm", "tcp", "file", "safetensors")


def rows(seconds):
    return [{"hand_over": value, "checked": 2 * value, "put": value, "get": 0.0} for value in seconds]


def summary(shm_s):
    times = {"memcpy": 0.001, "shm": shm_s, "tcp": 0.005, "file": 0.01, "safetensors": 0.01}
    return ec_transfer.summarise({"1 MB": {name: rows([value, 2 * value]) for name, value in times.items()}})


def test_ratios_are_taken_within_a_round():
    entry = summary(0.002)["1 MB"]["shm"]
    assert entry["hand_over_s"] == pytest.approx(0.003)
    assert entry["hand_over_of_memcpy"]["median"] == pytest.approx(0.5)
    assert entry["checked_times_safetensors"]["median"] == pytest.approx(5)


@pytest.mark.parametrize(("shm_s", "verdicts"), [(0.00125, ["0.6 met", "6 met"]), (0.002, ["0.6 **missed**"])])
def test_the_page_says_whether_the_targets_were_met(shm_s, verdicts):
    text = render.section({"machine": MACHINE, "rounds": 2, "transfers": summary(shm_s)})
    assert all(f"target {verdict}" in text for verdict in verdicts)
    assert text.count(", target ") == 2
    assert all(render.WAYS[name] in text for name in WAYS)


def test_a_burst_reads_the_source_before_each_tensor_and_numbers_them():
    seen = []

    def turn(source, number):
        seen.append(number)
        return {"hand_over": float(number)}

    row = ec_transfer.burst(turn, np.zeros(8, np.uint8), 16)
    assert seen == list(range(16, 16 + ec_transfer.BURST))
    assert row == {"hand_over": 16 + (ec_transfer.BURST - 1) / 2}


def test_copying_takes_its_targets_in_turn_and_copies():
    copying = ec_transfer.Copying(4096, 3)
    for number in range(6):
        assert copying(np.full(4096, number, np.uint8), number)["hand_over"] > 0
    assert copying._targets[:, 0].tolist() == [3, 4, 5]


def test_plain_memory_reaches_the_other_side_and_is_used_again(tmp_path):
    producer, consumer = PlainMemory(tmp_path), PlainMemory(tmp_path)
    offered = {}
    for number in range(5):
        if number >= 2:
            producer.drop(str(number - 2))
        offered[number] = producer.put(str(number), np.full(4096, number, np.uint8).data, ttl_s=1)
        assert bytes(consumer.get(offered[number], 4096, timeout_s=1)) == bytes([number]) * 4096
    assert len(set(offered.values())) == 2
