"""Reading the keys file again when it has changed."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from chiasm.errors import InvalidSettingError
from chiasm.observability.logs import LOGGER
from chiasm.tenancy.file import read_keys_file
from chiasm.tenancy.tenants import Tenants

INTERVAL_S = 1.0
"""How long a revoked key may still work."""

Record = Callable[[str, Mapping[str, Any]], None]


async def watch_keys_file(tenants: Tenants, record: Record) -> None:
    """Follow the file until cancelled. `record` is told of each change, as an act and its details.

    Each change is written to the log; a file that is broken, too, and until it is mended the keys read before it work.
    """
    while tenants.path is not None:
        await asyncio.sleep(INTERVAL_S)
        if tenants.has_changed():
            await reload_keys_file(tenants, record)


async def reload_keys_file(tenants: Tenants, record: Record) -> None:
    """Read the file now, on another thread."""
    assert tenants.path is not None
    try:
        changed = tenants.take(await asyncio.to_thread(read_keys_file, tenants.path))
    except InvalidSettingError as error:
        tenants.fault = error.message
        LOGGER.error("%s. The keys read before it go on working", error.message)
        _record(record, "keys_file_refused", {"reason": error.message})
        return
    LOGGER.info("Keys file read: %d keys added, %d removed", len(changed["added"]), len(changed["removed"]))
    _record(record, "keys_file_read", changed)


def _record(record: Record, act: str, details: Mapping[str, Any]) -> None:
    """A full disk must not keep a revoked key valid."""
    try:
        record(act, details)
    except OSError as error:
        LOGGER.error("The audit file cannot be written: %s", error.strerror)
