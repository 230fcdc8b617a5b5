"""Short slices: for the thread that asks, not for those it starts, and never an error."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor

import pytest

from chiasm.settings import slices
from chiasm.settings.slices import SwitchedSlices, shorten_thread_slices, slice_of_thread_s

NEEDS_SLICES = pytest.mark.skipif(slice_of_thread_s() is None, reason="this system tells nobody their slices")


def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@NEEDS_SLICES
def test_a_thread_gets_its_slices_and_those_that_it_starts_the_systems():
    usual_s = in_a_thread(slice_of_thread_s)

    def ask():
        return shorten_thread_slices(0.0003), slice_of_thread_s(), in_a_thread(slice_of_thread_s)

    assert in_a_thread(ask) == (True, 0.0003, usual_s)
    assert slice_of_thread_s() == usual_s


@NEEDS_SLICES
def test_nothing_else_of_the_thread_changes():
    def ask():
        os.setpriority(os.PRIO_PROCESS, 0, 7)
        assert shorten_thread_slices(0.0003)
        return os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK

    assert in_a_thread(ask) == (7, os.SCHED_OTHER)


@NEEDS_SLICES
def test_a_thread_that_has_no_slices_stays_as_it_is():
    def ask():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return shorten_thread_slices(0.0003), os.sched_getscheduler(0)

    assert in_a_thread(ask) == (False, os.SCHED_IDLE)


@NEEDS_SLICES
def test_a_thread_that_goes_before_others_stays_as_it_is_so_that_what_it_starts_does_as_well():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, 0)

    def ask():
        os.setpriority(os.PRIO_PROCESS, 0, -5)
        return shorten_thread_slices(0.0003), in_a_thread(niceness)

    try:
        found = in_a_thread(ask)
    except PermissionError:
        pytest.skip("this user may not go before others")
    assert found == (False, -5)


@pytest.mark.parametrize("system", [("machine", "riscv64"), ("system", "Darwin")])
def test_a_system_that_knows_nothing_of_it_changes_nothing(monkeypatch, system):
    monkeypatch.setattr(platform, system[0], lambda: system[1])
    assert not in_a_thread(lambda: shorten_thread_slices(0.0003))
    assert slice_of_thread_s() is None


def test_by_default_nothing_is_asked_for():
    before_s = slice_of_thread_s()
    assert not shorten_thread_slices(0.0)
    assert slice_of_thread_s() == before_s


@NEEDS_SLICES
def test_a_thread_has_short_slices_and_the_systems_in_turn_and_its_niceness_stays():
    usual_s = in_a_thread(slice_of_thread_s)

    def switch():
        switched = SwitchedSlices(0.0004)
        found = [slice_of_thread_s()]
        for change in (switched.shorten, switched.shorten, switched.lengthen, switched.lengthen, switched.shorten):
            os.setpriority(os.PRIO_PROCESS, 0, 3)  # as a process does that steps back once it is loaded
            change()
            found.append(slice_of_thread_s())
        return found, os.getpriority(os.PRIO_PROCESS, 0)

    assert in_a_thread(switch) == ([usual_s, 0.0004, 0.0004, usual_s, usual_s, 0.0004], 3)


def test_a_system_that_refuses_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(slices, "_set", lambda slice_s: asked.append(slice_s))
    switched = SwitchedSlices(0.0004)
    for change in (switched.shorten, switched.lengthen, switched.shorten, switched.lengthen):
        change()
    assert asked == [0.0004]


def test_no_slices_wanted_means_that_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(slices, "_set", lambda slice_s: pytest.fail(f"asked for {slice_s}"))
    switched = SwitchedSlices(0.0)
    switched.shorten()
    switched.lengthen()
