"""Looking for a cluster before Ray does."""

import socket

import pytest

from chiasm.launch.cluster.connection import check_listens


class Connection:
    def close(self):
        pass


@pytest.mark.parametrize(
    ("address", "asked"), [("head:6379", ("head", 6379)), ("[2001:db8::1]:6379", ("2001:db8::1", 6379))]
)
def test_the_head_of_a_cluster_is_looked_for_within_seconds(monkeypatch, address, asked):
    seen = []
    monkeypatch.setattr(socket, "create_connection", lambda *where: seen.append(where) or Connection())
    check_listens(address)
    assert [(where, timeout_s <= 10) for where, timeout_s in seen] == [(asked, True)]


def test_where_nobody_listens_that_is_said_at_once(monkeypatch):
    def refused(*_):
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(ConnectionRefusedError):
        check_listens("head:6379")
