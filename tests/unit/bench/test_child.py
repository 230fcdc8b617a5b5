"""What a client process asks of the machine."""

import errno
import os

import pytest

from chiasm.bench.client.child import _come_first


def test_a_client_comes_first_where_it_may(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda *values: asked.append(values))
    _come_first()
    assert [(pid, policy) for pid, policy, _ in asked] == [(0, os.SCHED_RR)]


@pytest.mark.parametrize("reason", [PermissionError, OSError(errno.ENOSYS, "not here"), AttributeError])
def test_a_client_that_may_not_sends_all_the_same(monkeypatch, reason):
    def refuse(*_):
        raise reason

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    _come_first()
