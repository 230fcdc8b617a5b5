"""What vLLM servers leave behind when they are killed, and how it goes.

They write into the system's temporary folder (`vllm_dist_*`, sockets) and share memory among their processes under
names of their own (`psm_*`, `vllm_*`). The former go to a folder of ours; the latter are listed there once a server is
up. Both go with the server, and what a killed Chiasm leaves goes with the next start.
"""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from chiasm.engines.vllm.ec.engine_folder import OwnedFolder

_MEMORY = Path("/dev/shm")  # noqa: S108 - what is removed there was seen in use by our own servers
_SEGMENT = re.compile(rf" ([0-9]+) +{_MEMORY}/((?:psm|vllm|torch)_[^/\s]+)$", re.MULTILINE)
_LIST = "segments.json"
_MAX_SOCKET_FOLDER_BYTES = 70
"""With a longer one, vLLM's names of sockets would be longer than the system allows."""


class Scratch:
    """A folder for each server of a crew. `close` removes everything."""

    def __init__(self, directory: Path | None = None) -> None:
        """Take the folder, and remove what killed owners left. `directory` is that of this user, unless it is named.

        Raises:
            InvalidSettingError: It cannot be made, or is not safe.
        """
        parent = directory or Path(tempfile.gettempdir()) / f"chiasm-vllm-{os.geteuid()}"
        self._owned = OwnedFolder(parent / f"ec-{secrets.token_hex(4)}", on_leftover=_release_all)

    def renewed(self, server: str) -> Path:
        """An empty folder for a server that is about to start; what its predecessor left is gone."""
        folder = self._owned.path / server
        release(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)  # the system may have tidied up its temporary folder
        return folder

    def close(self) -> None:
        """Remove the folder, and the memory of servers in it that have ended."""
        with suppress(OSError):
            _release_all(self._owned.path)
        self._owned.close()


def environment_in(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Environment of a server that works in the folder; compiled code is kept where it would be without it."""
    user = re.sub(r"\W", "_", environment.get("USER") or str(os.geteuid()))
    compiled = str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
    sockets = str(folder) if len(os.fsencode(folder)) <= _MAX_SOCKET_FOLDER_BYTES else tempfile.gettempdir()
    defaults = {"TORCHINDUCTOR_CACHE_DIR": compiled, "VLLM_RPC_BASE_PATH": sockets}
    return defaults | environment | {"TMPDIR": str(folder)}


def note_segments(folder: Path, group: int) -> None:
    """List the shared memory that the processes of a group have now."""
    found = {
        name: inode for process in _processes() if _group_of(process) == group for name, inode in _mapped_by(process)
    }
    with suppress(OSError):  # the server is on its way out, and its folder gone
        (folder / _LIST).write_bytes(msgspec.json.encode(found))


def release(folder: Path) -> None:
    """Remove the memory that is listed in a folder, where it is still the same and nobody has it mapped."""
    try:
        listed = msgspec.json.decode((folder / _LIST).read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):  # none, or it was written by halves
        return
    in_use = {name for process in _processes() for name, _ in _mapped_by(process)} if listed else set()
    for name, inode in listed.items():
        path = _MEMORY / Path(name).name
        with suppress(OSError):
            found = path.lstat()
            if (found.st_ino, found.st_uid) == (inode, os.geteuid()) and name not in in_use:
                path.unlink()


def _release_all(folder: Path) -> None:
    for one in folder.iterdir():
        release(one)


def _processes() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*")


def _group_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except (OSError, ValueError, IndexError):  # it has just ended
        return None


def _mapped_by(process: Path) -> Iterator[tuple[str, int]]:
    try:
        maps = (process / "maps").read_text(errors="replace")
    except OSError:  # ended, or somebody else's
        return
    for inode, name in _SEGMENT.findall(maps):
        yield name, int(inode)
