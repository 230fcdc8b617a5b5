"""A network namespace joined to this one by a wire of its own: slow, lossy, or cut. Needs root and iproute2.

The wire is two TUN devices and a thread that carries packets between them: kernels without netem can have it, too.
"""

import fcntl
import heapq
import itertools
import os
import random
import secrets
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_TIMEOUT_S = 30
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MAX_PACKET_BYTES = 65536
_MAX_UNDER_WAY = 10_000


def why_not() -> str:
    """Why no namespace can be made here; empty where it can."""
    if shutil.which("ip") is None:
        return "ip is not installed"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    try:
        with Namespace():
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    except OSError as error:
        return f"{_TUN}: {error.strerror}"


class Wire(threading.Thread):
    """Carries packets between two devices.

    Attributes:
        delay_s: How long each packet takes.
        loss: Share of packets that are lost.
        is_cut: Nothing gets through, and nobody is told.
        num_bytes: Bytes that came from the second device.
    """

    def __init__(self, devices: tuple[int, int], seed: int) -> None:
        super().__init__(name="wire", daemon=True)
        self.delay_s = 0.0
        self.loss = 0.0
        self.is_cut = False
        self.num_bytes = 0
        self._devices = devices
        self._random = random.Random(seed)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._waking, self._woken = os.pipe()

    def run(self) -> None:
        """Carry until `close`."""
        while True:
            rest_s = self._under_way[0][0] - time.monotonic() if self._under_way else None
            ready, _, _ = select.select(
                [*self._devices, self._waking], [], [], None if rest_s is None else max(0, rest_s)
            )
            if self._waking in ready:
                return
            for device in ready:
                self._take(device)
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(self._under_way)
                if not self.is_cut:
                    self._give(device, packet)

    def close(self) -> None:
        """End the thread and the devices."""
        os.write(self._woken, b"x")
        self.join(_TIMEOUT_S)
        for descriptor in (*self._devices, self._waking, self._woken):
            os.close(descriptor)

    def _take(self, device: int) -> None:
        packet = os.read(device, _MAX_PACKET_BYTES)
        if device == self._devices[1]:
            self.num_bytes += len(packet)
        if self.is_cut or self._random.random() < self.loss or len(self._under_way) >= _MAX_UNDER_WAY:
            return
        other = self._devices[0] if device == self._devices[1] else self._devices[1]
        heapq.heappush(self._under_way, (time.monotonic() + self.delay_s, next(self._numbers), other, packet))

    @staticmethod
    def _give(device: int, packet: bytes) -> None:
        try:
            os.write(device, packet)
        except OSError:  # the device takes nothing now: packets get lost on wires
            return


class Namespace:
    """A context manager; all it made is gone at the end, whatever happened inside.

    Attributes:
        name: Of the namespace.
        here: The address of this end of the wire.
        there: The address of the other end.
        wire: How it behaves.
    """

    wire: Wire

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._mark = mark = secrets.token_hex(4)
        self.name = f"chiasm-{mark}"
        net = f"10.{200 + int(mark[:2], 16) % 50}.{int(mark[2:4], 16)}"
        self.here, self.there = f"{net}.1", f"{net}.2"

    def __enter__(self) -> "Namespace":
        near, far = f"ch{self._mark}n", f"ch{self._mark}f"  # names of devices are short
        devices: list[int] = []
        try:
            devices += [_device(near)]
            devices += [_device(far)]
            _run("ip", "netns", "add", self.name)
            _run("ip", "link", "set", far, "netns", self.name)
            for words in (f"addr add {self.here}/24 dev {near}", f"link set {near} up"):
                _run("ip", *words.split())
            for words in (f"addr add {self.there}/24 dev {far}", f"link set {far} up", "link set lo up"):
                _run("ip", "-n", self.name, *words.split())
        except BaseException:
            for descriptor in devices:
                os.close(descriptor)
            self._delete()
            raise
        self.wire = Wire((devices[0], devices[1]), self._seed)
        self.wire.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wire.close()
        self._delete()

    def command(self, words: Sequence[str]) -> list[str]:
        """A command that runs inside."""
        return ["ip", "netns", "exec", self.name, *words]

    def _delete(self) -> None:
        subprocess.run(("ip", "netns", "del", self.name), capture_output=True, timeout=_TIMEOUT_S, check=False)


def _device(name: str) -> int:
    """A TUN device, there as long as its descriptor is open."""
    descriptor = os.open(_TUN, os.O_RDWR)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
