"""How `chiasm ask --stages` shows a request's way through a fleet."""

from chiasm.cli.ask import _route_words


def attempt(stage, worker, outcome="ok"):
    return {"stage": stage, "worker": worker, "outcome": outcome, "items": []}


def test_the_way_is_told_with_its_failures_and_its_reason():
    attempts = [
        attempt("encode", "encode-0", "engine_dead"),
        attempt("encode", "encode-1"),
        attempt("prefill", "prefill-0"),
    ]
    route = {"path": "e-pd", "policy": "adaptive", "reason": "Because of 3 ms.", "attempts": attempts}
    assert _route_words(route).splitlines() == [
        "way:  e-pd, policy adaptive; "
        "encode by encode-0 failed (engine_dead), encode by encode-1, prefill by prefill-0",
        "      Because of 3 ms.",
    ]
    assert "\n" not in _route_words(route | {"reason": ""})
