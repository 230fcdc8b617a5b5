"""The keys file: tenants, their limits, and hashes of their keys.

[defaults]
max_requests_per_minute = 600

[tenants.acme]
weight = 2.0

[[keys]]
id = "3f2a90c1"
tenant = "acme"
sha256 = "..."
scopes = ["infer", "pool"]
created = 2026-11-30T12:00:00Z
"""

import datetime
import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidSettingError
from chiasm.tenancy.keys import ANONYMOUS, Caller, Scope
from chiasm.tenancy.limits import UNLIMITED, Limits

TENANT_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
_HASH_LIKE = r"^[0-9a-f]{16}$"  # how tenants of keys in settings are called
_MAX_FILE_BYTES = 16 * 2**20

TenantName = Annotated[str, Meta(pattern=TENANT_PATTERN)]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key, by its hash."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    tenant: TenantName
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)]
    created: datetime.datetime
    expires: datetime.datetime | None = None


class KeysFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says. `defaults` are for what a tenant does not set itself."""

    defaults: Limits = UNLIMITED
    tenants: dict[TenantName, Limits] = {}
    keys: tuple[KeyEntry, ...] = ()

    def limits_of(self, tenant: str) -> Limits:
        """A tenant's own limits and the defaults."""
        return self.tenants.get(tenant, UNLIMITED).over(self.defaults)

    def callers(self) -> dict[bytes, Caller]:
        """Who the keys belong to, by their digests."""
        return {
            bytes.fromhex(key.sha256): Caller(
                key.id, key.tenant, frozenset(key.scopes), None if key.expires is None else key.expires.timestamp()
            )
            for key in self.keys
        }


def read_keys_file(path: Path) -> KeysFile:
    """Read and check the file. Raises `InvalidSettingError`, with nothing of the file's values in it."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidSettingError(f"The keys file has more than {_MAX_FILE_BYTES} bytes")
        return parse_keys_file(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettingError(
            f"The keys file cannot be read: {error.strerror}", hint="'chiasm keys new TENANT --file FILE' makes one"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidSettingError("The keys file is not UTF-8") from error


def parse_keys_file(text: str) -> KeysFile:
    """Check the file's text. Raises `InvalidSettingError`."""
    try:
        file = msgspec.convert(tomllib.loads(text), KeysFile)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettingError(f"The keys file is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise InvalidSettingError(f"The keys file: {error}", hint="'chiasm keys list' checks a file") from error
    _check_names(file)
    _check_keys(file)
    return file


def _check_names(file: KeysFile) -> None:
    for tenant in file.tenants:
        if tenant == ANONYMOUS or re.fullmatch(_HASH_LIKE, tenant):
            raise InvalidSettingError(
                f"The keys file: a tenant cannot be called '{tenant}'",
                hint="Names of 16 hexadecimal digits are those of keys in settings",
            )


def _check_keys(file: KeysFile) -> None:
    seen: set[str] = set()
    for key in file.keys:
        if key.tenant not in file.tenants:
            raise InvalidSettingError(
                f"The keys file: key '{key.id}' is of tenant '{key.tenant}', which has no table",
                hint=f"Add [tenants.{key.tenant}]",
            )
        if key.id in seen or key.sha256 in seen:
            raise InvalidSettingError(f"The keys file: key '{key.id}' is there twice")
        if any(at is not None and at.tzinfo is None for at in (key.created, key.expires)):
            raise InvalidSettingError(
                f"The keys file: key '{key.id}' has a time without zone", hint="Write 2026-11-30T12:00:00Z"
            )
        seen |= {key.id, key.sha256}
