"""Short slices: for the thread that asks, not for those it starts, and never an error."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor

import pytest

from chiasm.settings.slices import shorten_thread_slices, slice_of_thread_s

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
