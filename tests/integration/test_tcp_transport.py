"""TCP's own rules: time limits, cut connections, strangers."""

import socket
import threading

import pytest

from chiasm.connectors.tcp import wire
from chiasm.connectors.tcp.server import MAX_CONNECTIONS
from chiasm.connectors.tcp.transport import TcpTransport
from chiasm.errors import HandleExpiredError, InvalidSettingError, TransferError
from tests.integration.test_transports import MIB, wait_for


class Stub:
    """A peer that does what it is told to the first connection, then closes."""

    def __init__(self, *replies, waits=None):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}/{'0' * 32}"
        self._replies, self._waits = replies, waits
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        end, _ = self._listener.accept()
        with end:
            end.recv(wire.REQUEST.size)
            for reply in self._replies:
                end.sendall(reply)
            if self._waits:
                self._waits.wait(60)

    def close(self):
        self._thread.join(60)
        self._listener.close()


@pytest.fixture
def tcp():
    transport = TcpTransport(host="127.0.0.1", max_bytes=16 * MIB, timeout_s=5.0)
    yield transport
    transport.close()


@pytest.mark.parametrize(
    "replies",
    [
        (),
        (b"chias",),
        (wire.REPLY.pack(wire.MAGIC, wire.OK, 100), bytes(99)),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
    ],
)
def test_a_connection_cut_midway_or_of_another_kind_is_a_transfer_error(tcp, replies):
    stub = Stub(*replies)
    with pytest.raises(TransferError) as caught:
        tcp.get(stub.address, 100, timeout_s=20)
    assert caught.type is TransferError
    stub.close()


@pytest.mark.parametrize("replies", [(), (wire.REPLY.pack(wire.MAGIC, wire.OK, 100), bytes(50))])
def test_a_peer_that_stalls_costs_the_time_limit_and_no_more(tcp, replies):
    ended = threading.Event()
    stub = Stub(*replies, waits=ended)
    with pytest.raises(TransferError, match="did not arrive within"):
        tcp.get(stub.address, 100, timeout_s=0.2)
    ended.set()
    stub.close()


def test_a_server_that_is_gone_is_an_expired_handle(tcp):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(HandleExpiredError):
        tcp.get(f"127.0.0.1:{port}/{'0' * 32}", 100, timeout_s=5)


def test_connections_are_used_again_and_renewed_when_the_server_has_given_them_up(tcp):
    other = TcpTransport(host="127.0.0.1", max_bytes=MIB, timeout_s=5.0)
    address = other.put("a", b"abc", ttl_s=60)
    for _ in range(5):
        tcp.get(address, 3, timeout_s=5)
    assert other._server.num_connections == tcp._client.num_idle == 1
    for end in list(other._server._connections):
        end.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: other._server.num_connections == 0)
    assert bytes(tcp.get(address, 3, timeout_s=5)) == b"abc"
    other.close()
    with pytest.raises(HandleExpiredError):
        tcp.get(address, 3, timeout_s=5)


def test_strangers_are_cut_off_and_bounded(tcp):
    address = tcp.put("a", b"abc", ttl_s=60)
    host, port, token = wire.parse_address(address)
    with socket.create_connection((host, port), 30) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(64))
        assert ended(stranger)
    with socket.create_connection((host, port), 30) as guesser:
        guesser.sendall(wire.REQUEST.pack(wire.MAGIC, wire.TAKE, bytes(len(token)), 3))
        assert guesser.recv(100) == wire.REPLY.pack(wire.MAGIC, wire.GONE, 0)
    wait_for(lambda: tcp._server.num_connections == 0)
    many = [socket.create_connection((host, port), 30) for _ in range(MAX_CONNECTIONS + 1)]
    wait_for(lambda: tcp._server.num_connections == MAX_CONNECTIONS)
    assert ended(many[-1])
    for end in many:
        end.close()
    wait_for(lambda: tcp._server.num_connections == 0)
    assert bytes(tcp.get(address, 3, timeout_s=5)) == b"abc"


def ended(end):
    """Whether the other side closed, orderly or not."""
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_silent_connection_is_closed():
    with TcpHeld(timeout_s=0.1) as transport:
        host, port, _ = wire.parse_address(transport.put("a", b"abc", ttl_s=60))
        with socket.create_connection((host, port), 30) as silent:
            assert ended(silent)


class TcpHeld(TcpTransport):
    """As a context manager."""

    def __init__(self, timeout_s):
        super().__init__(host="127.0.0.1", max_bytes=MIB, timeout_s=timeout_s)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no such host"])
def test_a_host_that_cannot_be_reached_is_refused_at_the_start(host):
    with pytest.raises(InvalidSettingError):
        TcpTransport(host=host, max_bytes=MIB, timeout_s=5.0)
