"""Folders for workers' sockets: one of a server's own, or one in which workers started by hand register."""

import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import getuid
from pathlib import Path

from chiasm.errors import InvalidSettingError
from chiasm.settings.paths import written_path

SUFFIX = ".sock"


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder that only this user enters, gone with the block. Its path is short, as socket addresses must be."""
    folder = Path(tempfile.mkdtemp(prefix="chiasm-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def watched_folder(path: str) -> Path:
    """Return the folder in which workers register, made if it is not there.

    Whoever can write to it can put a worker between a server and its users, so that only its owner may.

    Raises:
        InvalidSettingError: It is no folder, somebody else's, or others may write to it.
    """
    folder = written_path(path, "routing.directory")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise InvalidSettingError(f"routing.directory {folder}: {error.strerror}") from error
    if status.st_uid != getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettingError(
            f"routing.directory {folder} is not safe: others may write to it", hint=f"chmod 700 {folder}, as its owner"
        )
    return folder


def host_id() -> str:
    """What processes that can reach each other's Unix sockets agree on: the kernel's start, and its host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot = ""
    return f"{boot}:{socket.gethostname()}"


def registered(folder: Path) -> dict[str, str]:
    """Names and addresses of the workers whose sockets are in the folder; some may be dead."""
    return {path.name.removesuffix(SUFFIX): f"unix:{path}" for path in sorted(folder.glob(f"*{SUFFIX}"))}


def is_listening(path: str) -> bool:
    """Whether a process takes connections at a Unix socket. Does not wait; raises `OSError` where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # it has more callers than it answers
            return True
    return True
