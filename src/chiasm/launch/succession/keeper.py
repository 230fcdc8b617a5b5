"""What a server becomes when its successor has taken over: it holds the socket and the process's number.

`python -m chiasm.launch.succession.keeper '{"listener": 3, "channel": 5, "pid": 42, "command": [...]}'`
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from chiasm.errors import EngineStartError
from chiasm.launch.processes.pidfd import process_ended
from chiasm.launch.succession.successor import FAILED, LEAVE, WANTED, Successor, start_successor

logger = logging.getLogger("chiasm")


def become_keeper(successor: Successor, listener: int, command: Sequence[str]) -> None:
    """Replace this process's program by the keeper. Never returns."""
    order = {"listener": listener, "channel": successor.channel.fileno(), "pid": successor.pid, "command": command}
    for descriptor in (listener, successor.channel.fileno()):
        os.set_inheritable(descriptor, True)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until the keeper listens to it
    program = [sys.executable, "-m", "chiasm.launch.succession.keeper", json.dumps(order)]
    os.execv(sys.executable, program)  # noqa: S606 - ourselves


class Keeper:
    """Keeps one server at a time in its place."""

    def __init__(self, successor: Successor, listener: int, command: Sequence[str]) -> None:
        self._current = successor
        self._listener = listener
        self._command = command
        self._servers: dict[Successor, asyncio.Task[int]] = {}  # the current one, and those that are leaving
        self._renewing: asyncio.Task[None] | None = None
        self._is_ending = False

    async def run(self) -> int:
        """Keep until the current server has ended, and those that are leaving; returns the exit status of the first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on, number)
        loop.add_signal_handler(signal.SIGUSR2, self._renew)
        self._keep(self._current)
        current: Successor | None = None
        while current is not self._current:
            current = self._current
            status = await self._servers[current]
        self._end_renewal()
        os.close(self._listener)  # nobody accepts any more: rather refused than never answered
        await asyncio.gather(*self._servers.values())
        return status if status >= 0 else 128 - status

    def _keep(self, serving: Successor) -> None:
        self._servers[serving] = asyncio.create_task(self._kept(serving))

    async def _kept(self, serving: Successor) -> int:
        listening = asyncio.create_task(self._listen(serving))
        await process_ended(serving.pid, lambda: True)
        listening.cancel()
        status = _status_of(serving.pid)
        if serving is not self._current:
            del self._servers[serving]
        return status

    async def _listen(self, serving: Successor) -> None:
        """Start a successor whenever the server asks for one."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while said := await loop.sock_recv(serving.channel, 1):
                if said == WANTED:
                    self._renew()

    def _renew(self) -> None:
        if not self._is_ending and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._renewed())

    async def _renewed(self) -> None:
        former = self._current
        try:
            successor = start_successor(self._command, self._listener)
            await successor.wait_ready()
        except EngineStartError as error:
            logger.error("The server stays: %s", error.message)
            former.tell(FAILED)
            return
        self._current = successor
        self._keep(successor)
        former.tell(LEAVE)

    def _end_renewal(self) -> None:
        """Start nothing more, and end a server that has not taken over."""
        self._is_ending = True
        if self._renewing is not None:
            self._renewing.cancel()

    def _pass_on(self, number: int) -> None:
        self._end_renewal()
        for server, kept in self._servers.items():
            if not kept.done():
                server.pass_on(number)


def _status_of(pid: int) -> int:
    """The exit status of a child that has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Keep the server that the order names."""
    order = json.loads(sys.argv[1])
    for descriptor in (order["listener"], order["channel"]):
        os.set_inheritable(descriptor, False)
    channel = socket.socket(fileno=order["channel"])
    channel.setblocking(False)
    keeper = Keeper(Successor(order["pid"], channel), order["listener"], order["command"])
    sys.exit(asyncio.run(keeper.run()))


if __name__ == "__main__":
    main()
