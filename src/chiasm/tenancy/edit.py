"""Changing a keys file that people edit, too: their comments and order stay."""

import datetime
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomlkit

from chiasm.errors import InvalidSettingError
from chiasm.tenancy.file import TENANT_PATTERN, KeysFile, parse_keys_file, read_keys_file
from chiasm.tenancy.keys import Scope, digest_of

_KEY_BYTES = 32
_ID_BYTES = 4
_HEADING = " Tenants, their limits, and hashes of their keys. Read again by the server whenever it changes."


def new_key(path: Path, tenant: str, scopes: Sequence[Scope], expires: datetime.datetime | None = None) -> str:
    """Add a key to the file, which is made if it is not there, and return it: nobody can tell it again.

    Raises:
        InvalidSettingError: The file is broken, or would be.
    """
    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise InvalidSettingError(
            "This is no name of a tenant", hint="Lower-case letters, digits, '-' and '_', up to 63; no '-' or '_' first"
        )
    key_id = secrets.token_hex(_ID_BYTES)
    key = f"chiasm-{key_id}-{secrets.token_urlsafe(_KEY_BYTES)}"

    def add(document: tomlkit.TOMLDocument) -> None:
        if tenant not in document.setdefault("tenants", tomlkit.table(is_super_table=True)):
            document["tenants"][tenant] = tomlkit.table()
        entry = tomlkit.table()
        entry.update({"id": key_id, "tenant": tenant, "sha256": digest_of(key.encode()).hex(), "scopes": [*scopes]})
        entry["created"] = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        if expires is not None:
            entry["expires"] = expires
        entry.add(tomlkit.nl())
        document.setdefault("keys", tomlkit.aot()).append(entry)

    _change(path, add)
    return key


def revoke_key(path: Path, key_id: str) -> None:
    """Take a key out of the file. Raises `InvalidSettingError`, also when it is not there."""

    def take_out(document: tomlkit.TOMLDocument) -> None:
        keys: Any = document.get("keys", [])
        for position, entry in enumerate(keys):
            if entry["id"] == key_id:
                del keys[position]
                return
        raise InvalidSettingError(f"There is no key '{key_id}'", hint="'chiasm keys list' names them")

    read_keys_file(path)
    _change(path, take_out)


def _change(path: Path, change: Callable[[tomlkit.TOMLDocument], None]) -> KeysFile:
    """Read, change, check and replace the file at once: a server never sees half of it."""
    try:
        with _locked(path):
            if path.exists():
                read_keys_file(path)
                document = tomlkit.parse(path.read_text(encoding="utf-8"))
            else:
                document = tomlkit.document()
                document.add(tomlkit.comment(_HEADING.strip()))
            change(document)
            text = tomlkit.dumps(document)
            file = parse_keys_file(text)
            _replace(path, text)
    except OSError as error:
        raise InvalidSettingError(f"The keys file cannot be written: {error.strerror}") from error
    return file


def _replace(path: Path, text: str) -> None:
    path = path.resolve()  # a link stays one
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as sink:
            if path.exists():
                os.fchmod(descriptor, path.stat().st_mode & 0o777)  # a server that runs as another user goes on reading
            sink.write(text)
            sink.flush()
            os.fsync(descriptor)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One change at a time."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
