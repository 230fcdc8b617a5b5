"""From a gateway's report to a decision, and from a decision to encoders that come and go."""

import asyncio
import logging
import threading

import pytest

from chiasm.errors import EngineStartError
from chiasm.launch.cluster.encoders import ScaledEncoders
from chiasm.launch.cluster.scaling import Scaling, can_scale, rule_of
from chiasm.launch.processes.messages import Load, MemberLoad
from chiasm.launch.sick import Sick
from chiasm.settings import resolve


def settings(**values):
    return resolve(values={"routing.topology": "e-pd", "routing.encoders": 2} | values, environment={}).settings


def load(queue_s, misses=0.0, **members):
    levels = {"encoder_queue_seconds": queue_s, "predicted_slo_misses": misses}
    return Load(levels, {name.replace("_", "-"): MemberLoad(state, 0) for name, state in members.items()})


def test_the_rule_is_what_the_settings_say():
    rule = rule_of(settings(**{"cluster.max_encoders": 1, "cluster.calm_s": 20.0, "cluster.encoder_hour_cost": 2.0}))
    assert (rule.min_encoders, rule.max_encoders, rule.calm_s, rule.fall_period_s) == (2, 2, 20.0, 20.0)
    assert rule.hour_cost == 2.0


@pytest.mark.parametrize(
    ("topology", "scaling", "expected"), [("e-pd", "dry_run", True), ("agg", "act", False), ("e-p-d", "off", False)]
)
def test_only_encoders_apart_are_scaled(topology, scaling, expected):
    assert can_scale(settings(**{"routing.topology": topology, "cluster.scaling": scaling})) is expected


@pytest.mark.parametrize(("mode", "words", "times"), [("dry_run", "would change", 1), ("act", "changes", 2)])
def test_what_would_be_done_is_said_once_what_is_done_each_time(caplog, mode, words, times):
    caplog.set_level(logging.INFO)
    scaling, names = Scaling(settings(**{"cluster.scaling": mode})), ("encode-0", "encode-1")
    busy = load(9.0, encode_0="ready", encode_1="ready")
    assert [scaling.decide(at_s, busy, names).num_wanted for at_s in (0.0, 15.0)] == [4, 4]
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == times
    assert f"Scaling {words} encoders from 2 to 4" in said[0]
    assert scaling.num_wanted == 4


def test_only_encoders_that_answer_count_as_ready():
    decision = Scaling(settings()).decide(
        0.0, load(0.5, 3, encode_0="ready", encode_1="down"), ("encode-0", "encode-1")
    )
    assert decision.num_wanted == 2  # one more would be wanted if both were ready


class Worker:
    """A `Process` that runs until it is told to end."""

    def __init__(self, spec, is_broken):
        self.name, self.address, self.pid, self.started_s = spec.name, f"http://a/{spec.name}", 1, 0.0
        self._end, self._is_broken, self.is_alive = asyncio.Event(), is_broken, True

    def wait_ready(self, progress):
        if self._is_broken:
            raise EngineStartError("no")

    async def ended(self):
        await self._end.wait()

    def terminate(self):
        self.is_alive = False

    def wait(self, timeout_s):
        return True

    def kill(self):
        self.is_alive = False


class Scaled:
    """`ScaledEncoders` over such processes, and what they tell."""

    def __init__(self, is_broken=False):
        self.made, self.up, self.left = [], {}, []
        self.encoders = ScaledEncoders(lambda spec: self._made(spec, is_broken), 0.01, 2, self._on_up, self._on_down)

    def _made(self, spec, is_broken):
        self.made.append(Worker(spec, is_broken))
        return self.made[-1]

    async def _on_up(self, name, address):
        self.up[name] = address

    async def _on_down(self, name):
        self.up.pop(name, None)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads set no event of this loop
            await asyncio.sleep(0.001)


async def test_an_encoder_comes_under_a_new_name_and_goes_only_when_it_is_idle():
    scaled = Scaled()
    assert scaled.encoders.add() == "encode-2"
    await until(lambda: scaled.up)
    reports = [None, Load({}, {"encode-2": MemberLoad("ready", 0)}), Load({}, {"encode-2": MemberLoad("draining", 1)})]

    async def report():
        assert scaled.made[0].is_alive
        return reports.pop(0) if reports else Load({}, {"encode-2": MemberLoad("draining", 0)})

    await scaled.encoders.drop("encode-2", scaled.left.append, report, 30.0)
    assert (scaled.left, reports, scaled.up, scaled.encoders.names) == (["encode-2"], [], {}, ())
    assert not scaled.made[0].is_alive
    assert scaled.encoders.add() == "encode-3"
    await scaled.encoders.aclose()
    assert scaled.encoders.names == ()


async def test_one_that_never_gets_idle_goes_when_the_time_is_over(caplog):
    scaled = Scaled()
    name = scaled.encoders.add()
    await until(lambda: scaled.up)

    async def report():
        return Load({}, {name: MemberLoad("draining", 1)})

    await scaled.encoders.drop(name, scaled.left.append, report, 0.01)
    assert "still has work" in caplog.text
    assert not scaled.made[0].is_alive


async def test_one_that_is_dropped_while_it_is_being_started_does_not_stay(caplog):
    entered, go_on, scaled = threading.Event(), threading.Event(), Scaled()

    def slow(spec):
        entered.set()
        assert go_on.wait(10)
        return scaled._made(spec, is_broken=False)

    scaled.encoders = ScaledEncoders(slow, 0.01, 2, scaled._on_up, scaled._on_down)
    name = scaled.encoders.add()
    await until(entered.is_set)

    async def nothing():
        return Load({}, {})

    dropping = asyncio.create_task(scaled.encoders.drop(name, scaled.left.append, nothing, 30.0))
    await until(lambda: not scaled.encoders.names)
    await asyncio.sleep(0)
    assert not dropping.done()
    go_on.set()
    await dropping
    assert [(one.name, one.is_alive) for one in scaled.made] == [(name, False)]
    assert (scaled.up, caplog.text) == ({}, "")


async def test_one_that_does_not_start_is_given_up(caplog):
    scaled = Scaled(is_broken=True)
    scaled.encoders.add()
    await until(lambda: not scaled.encoders.names)
    assert "did not start: no" in caplog.text
    assert scaled.up == {}


def test_who_does_not_answer_for_half_a_minute_is_named_once_and_then_anew():
    sick = Sick()
    assert sick.of({"a", "b"}, 0.0) == []
    assert sick.of({"a"}, 20.0) == []
    assert sick.of({"a", "b"}, 31.0) == ["a"]
    assert sick.of({"a", "b"}, 62.0) == ["b"]
    assert sick.of({"a"}, 93.0) == ["a"]
