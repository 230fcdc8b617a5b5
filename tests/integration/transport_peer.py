"""Another process with a transport, asked over pipes: for tests that need two, or one that can be killed."""

import json
import random
import subprocess
import sys
from pathlib import Path

from chiasm.connectors.base import checksum
from chiasm.connectors.registry import make_transport
from chiasm.errors import ChiasmError
from chiasm.settings import TransferSettings


def noise(seed, num_bytes):
    return random.Random(seed).randbytes(num_bytes)


class Peer:
    """The process. As a context manager: ended at the end, whatever happened."""

    def __init__(self, **settings):
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        assert self._receive() == {"ready": True}

    def ask(self, **operation):
        self._process.stdin.write(json.dumps(operation) + "\n")
        return self._receive()

    def kill(self):
        self._process.kill()
        self._process.wait(30)

    def _receive(self):
        line = self._process.stdout.readline()
        assert line, "the peer ended"
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            assert self._process.wait(30) in (0, -9)
        finally:
            self.kill()
            self._process.stdout.close()


class Served:
    """The other end of `Peer.ask`."""

    def __init__(self, transport):
        self.transport = transport
        self.held = []

    def put(self, key, seed, num_bytes, ttl_s=60.0):
        data = noise(seed, num_bytes)
        return {"address": self.transport.put(key, data, ttl_s=ttl_s), "checksum": checksum(data)}

    def get(self, address, num_bytes, timeout_s=10.0):
        try:
            return {"checksum": checksum(self.transport.get(address, num_bytes, timeout_s=timeout_s))}
        except ChiasmError as error:
            return {"error": type(error).__name__}

    def hold(self, address, num_bytes):
        self.held.append(self.transport.get(address, num_bytes, timeout_s=10.0))
        return {"checksum": checksum(self.held[-1])}

    def check_held(self):
        return {"checksums": [checksum(data) for data in self.held]}

    def release(self):
        self.held.clear()
        return {}


def answer(reply):
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def main():
    served = Served(make_transport(TransferSettings(**json.loads(sys.argv[1]))))
    answer({"ready": True})
    for line in sys.stdin:
        operation = json.loads(line)
        answer(getattr(served, operation.pop("op"))(**operation))
    served.transport.close()


if __name__ == "__main__":
    main()
