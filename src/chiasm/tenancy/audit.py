"""What operators did: one JSON object a line, without keys and contents."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.observability.logs import LOGGER


class AuditLog:
    """Appends to a file that only its owner reads; without one, to the server's log.

    A line has `time` (UTC), `act`, and what belongs to it. Lines are on disk when `record` returns.
    """

    def __init__(self, path: str | None) -> None:
        """Open the file. Raises `InvalidSettingError` when it cannot be appended to."""
        self._sink: IO[bytes] | None = None
        if path is None:
            return
        try:
            descriptor = os.open(Path(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidSettingError(f"gateway.audit_file cannot be appended to: {error.strerror}") from error
        self._sink = os.fdopen(descriptor, "ab", buffering=0)

    def record(self, act: str, details: Mapping[str, Any]) -> None:
        """Write a line. Raises `OSError` when that fails: an act that nobody can be held to must not happen."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = msgspec.json.encode({"time": at, "act": act, **details})
        if self._sink is None:
            LOGGER.info("audit %s", line.decode())
            return
        self._sink.write(line + b"\n")
        os.fsync(self._sink.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._sink is not None:
            self._sink.close()
