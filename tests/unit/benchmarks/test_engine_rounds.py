from benchmarks.engine import run_rounds, summarise
from benchmarks.peer_process import PeerError


class Peer:
    def __init__(self, name, speed):
        self.name = name
        self.speed = speed


def measure(peer, seed):
    if peer.speed is None:
        raise PeerError("cannot")
    return {"tokens_per_s": peer.speed}


def rounds(*peers):
    todo = {"decode 1": (measure, "tokens_per_s")}
    rows = run_rounds(list(peers), todo, 3, "tag")
    return rows, summarise(rows, todo)["decode 1"]


def test_the_first_round_warms_up_and_is_not_kept():
    rows, _ = rounds(Peer("chiasm", 10.0), Peer("generate", 4.0))
    assert [row["round"] for row in rows if row["peer"] == "chiasm"] == [1, 2, 3]


def test_ratios_are_ours_over_theirs():
    _, summary = rounds(Peer("chiasm", 10.0), Peer("generate", 4.0))
    assert summary["medians"] == {"chiasm": 10.0, "generate": 4.0}
    assert summary["ratios"]["generate"]["median"] == 2.5


def test_a_peer_that_cannot_is_left_out_and_the_others_go_on():
    rows, summary = rounds(Peer("chiasm", 10.0), Peer("hf_batching", None))
    assert summary["medians"] == {"chiasm": 10.0}
    assert len(rows) == 3


def test_without_our_engine_there_are_no_ratios():
    assert rounds(Peer("generate", 4.0))[1]["ratios"] == {}


def test_an_interrupted_run_keeps_its_whole_rounds():
    calls = []

    def interrupted(peer, seed):
        calls.append(peer.name)
        if len(calls) == 6:  # in the middle of round 2, after a warm-up and a round of two peers each
            raise KeyboardInterrupt
        return {"tokens_per_s": peer.speed}

    rows = run_rounds([Peer("chiasm", 2.0), Peer("vllm", 1.0)], {"decode 1": (interrupted, "tokens_per_s")}, 5, "tag")
    assert sorted((row["round"], row["peer"]) for row in rows) == [(1, "chiasm"), (1, "vllm")]
