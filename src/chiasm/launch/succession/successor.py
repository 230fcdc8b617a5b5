"""The next server process, as the one that starts it sees it."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from chiasm.errors import EngineStartError

READY, WANTED = b"R", b"W"
"""What a server says: that it listens, and that it wants a successor."""

LEAVE, FAILED = b"L", b"F"
"""What it is told: that its successor has taken over, and that its successor did not start."""

OPTION = "--take-over"
START_TIMEOUT_S = 1800.0  # a fleet of vLLM servers may take a quarter of an hour


class Successor:
    """A server that was started with our listening socket."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel

    async def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it takes over. Raises `EngineStartError`; it has been ended then."""
        try:
            async with asyncio.timeout(timeout_s):
                said = await asyncio.get_running_loop().sock_recv(self.channel, 1)
        except TimeoutError:
            self.end()
            raise EngineStartError(f"The next server was not ready within {timeout_s:.0f} s") from None
        except OSError:
            said = b""
        except BaseException:
            self.end()
            raise
        if said != READY:
            self.end()
            raise EngineStartError("The next server ended while it started", hint="Its log says why")

    def tell(self, word: bytes) -> None:
        """Say something to it, unless it is gone."""
        with suppress(OSError):
            self.channel.send(word)

    def pass_on(self, number: int) -> None:
        """Send it a signal; its end has not been taken note of."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> None:
        """End it now and take note of its end."""
        self.channel.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start_successor(command: Sequence[str], listener: int) -> Successor:
    """Start a server with the descriptor of our listening socket. Raises `EngineStartError`."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    fds = (listener, theirs.fileno())
    try:
        process = subprocess.Popen(  # noqa: S603 - the command that started this server
            [*command, OPTION, f"{fds[0]},{fds[1]}"],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,  # the terminal's signals come to us, and we pass them on
        )
    except OSError as error:
        ours.close()
        raise EngineStartError(f"The next server cannot be started: {error.strerror}") from error
    finally:
        theirs.close()
    process.returncode = 0  # whoever keeps it waits for it by its number
    return Successor(process.pid, ours)
