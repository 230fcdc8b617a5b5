"""A server's own side of its replacement: it starts a successor or asks its keeper to, and learns when to leave."""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from chiasm.errors import EngineStartError, InvalidSettingError, OverloadedError, ShuttingDownError
from chiasm.launch.succession.successor import FAILED, LEAVE, OPTION, READY, WANTED, Successor, start_successor
from chiasm.observability.logs import LOGGER
from chiasm.protocol.fleet import GatewayProcessState
from chiasm.settings import GatewaySettings


class Inheritance(NamedTuple):
    """What a successor gets: the listening socket, and the channel to whoever started it."""

    listener: socket.socket
    channel: socket.socket


def inherited(said: str, settings: GatewaySettings) -> Inheritance:
    """The inheritance that a command line names.

    Raises:
        InvalidSettingError: It names none, or the settings say another port than the one that is handed on.
    """
    try:
        listener, channel = (socket.socket(fileno=int(number)) for number in said.split(","))
    except (ValueError, OSError) as error:
        raise InvalidSettingError(f"{OPTION} is for servers that start their successors") from error
    for one in (listener, channel):
        one.setblocking(False)
        one.set_inheritable(False)
    if settings.port not in (0, listener.getsockname()[1]):
        raise InvalidSettingError(
            f"gateway.port is {settings.port} now; a successor serves on port {listener.getsockname()[1]}",
            hint="Stop the server and start it again",
        )
    return Inheritance(listener, channel)


def own_command() -> list[str]:
    """The command that started this server, without what a successor is told."""
    words = [sys.executable, *sys.orig_argv[1:]]
    return words[: words.index(OPTION)] if OPTION in words else words


class Handover:
    """See `Replaceable`. Belongs to the server's event loop once `run` was called.

    Attributes:
        is_over: Set when a successor has taken over: accept nothing more, finish, and end.
        successor: The one that this server has started; None where a keeper did.
    """

    def __init__(self, listener: socket.socket, command: Sequence[str], channel: socket.socket | None = None) -> None:
        self.listener = os.dup(listener.fileno())  # the server closes its own
        self.command = command
        self.is_over = asyncio.Event()
        self.successor: Successor | None = None
        self._channel = channel
        self._is_starting = False
        self._is_ending = False
        self._error = ""
        self._task: asyncio.Task[None] | None = None

    def gateway_process(self) -> GatewayProcessState:
        """See `Replaceable`."""
        state = "leaving" if self.is_over.is_set() else "starting" if self._is_starting else "serving"
        return GatewayProcessState(pid=os.getpid(), state=state, error=self._error)

    def replace(self) -> None:
        """See `Replaceable`."""
        if self._is_ending:
            raise ShuttingDownError("The server is shutting down", hint="Start it again")
        if self._is_starting or self.is_over.is_set():
            raise OverloadedError("A successor is starting", hint="Wait until it serves")
        self._is_starting, self._error = True, ""
        LOGGER.info("Starting a successor")
        if self._channel is not None:
            with suppress(OSError):  # its end is noticed elsewhere
                self._channel.send(WANTED)
        else:
            self._task = asyncio.create_task(self._succeed())

    def replace_if_idle(self) -> None:
        """The same for a signal: harmless while a successor is starting, or the server ends."""
        with suppress(OverloadedError, ShuttingDownError):
            self.replace()

    def ready(self) -> None:
        """Say that this server listens."""
        if self._channel is not None:
            with suppress(OSError):
                self._channel.send(READY)

    async def run(self, stop: asyncio.Event) -> None:
        """Do what the keeper says; set `stop` when it is gone. Returns at once where there is none."""
        if self._channel is None:
            return
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while said := await loop.sock_recv(self._channel, 1):
                if said == LEAVE:
                    self.is_over.set()
                elif said == FAILED:
                    self._failed("The next server did not start; the log says why")
        stop.set()

    def pass_on(self, number: int) -> None:
        """A signal ends the server: also its successor, or the start of one."""
        self._is_ending = True
        if self.successor is not None:
            self.successor.pass_on(number)
        elif self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """End a successor that has not taken over."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _succeed(self) -> None:
        try:
            successor = start_successor(self.command, self.listener)
            await successor.wait_ready()
        except EngineStartError as error:
            LOGGER.error("This server stays: %s", error.message)
            self._failed(error.message)
            return
        self.successor = successor
        self._is_starting = False
        self.is_over.set()

    def _failed(self, error: str) -> None:
        self._is_starting, self._error = False, error
