"""The tenants of a server: their keys and meters, which may change while it runs."""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.settings import GatewaySettings
from chiasm.tenancy.file import KeysFile, read_keys_file
from chiasm.tenancy.keys import NOBODY_IN_PARTICULAR, Caller, KeyRing, callers_of_settings, tenant_of
from chiasm.tenancy.limits import Meter

Clock = Callable[[], float]


class TenantUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant, as operators see it; counts since the server started. `api_key` is its place in `gateway.api_keys`."""

    tenant: str
    api_key: int | msgspec.UnsetType = msgspec.UNSET
    weight: float
    num_open: int
    num_running: int
    num_requests: int
    num_tokens: int
    num_visual_tokens: int
    num_media_bytes: int
    num_refused: dict[str, int]


class Tenants:
    """Keys from settings and from the keys file, and what each tenant has used. Belongs to one event loop.

    Attributes:
        file: As last read without a fault.
        loaded_at_unix_s: When that was.
        fault: What is wrong with the file as it is now; the keys read before go on working.
        adopt: Called with each new meter.
    """

    def __init__(self, settings: GatewaySettings, clock: Clock = time.monotonic) -> None:
        """Raises `InvalidSettingError` for keys that contradict each other, and for a keys file that is not usable."""
        if {*settings.admin_keys} & {*settings.api_keys}:
            raise InvalidSettingError(
                "gateway.admin_keys and gateway.api_keys have a key in common", hint="Give operators keys of their own"
            )
        self._clock = clock
        self._settings = settings
        self._meters: dict[str, Meter] = {}
        self.adopt: Callable[[Meter], None] = lambda _: None
        self._stamp: tuple[int, ...] | None = None
        self.path = Path(settings.keys_file) if settings.keys_file else None
        self.file = KeysFile()
        self.loaded_at_unix_s = time.time()
        self.fault: str | None = None
        if self.path is not None:
            self._stamp = _stamp(self.path)
            self.file = read_keys_file(self.path)
        self._ring = self._ring_of(self.file)

    @property
    def is_open(self) -> bool:
        """Whether callers need no key, but for `/admin/`."""
        return not self._settings.api_keys and self.path is None

    @property
    def has_admins(self) -> bool:
        """Whether there is, or may come, a key that opens `/admin/`."""
        return bool(self._settings.admin_keys) or self.path is not None

    def find(self, key: bytes) -> Caller | None:
        """Who sends this key; see `KeyRing.find`."""
        return self._ring.find(key)

    def meter(self, tenant: str) -> Meter:
        """What a tenant has used; there are as many as tenants that have had a key."""
        meter = self._meters.get(tenant)
        if meter is None:
            meter = self._meters[tenant] = Meter(tenant, self.file.limits_of(tenant), self._clock())
            self.adopt(meter)
        return meter

    def meters(self) -> Collection[Meter]:
        """Those made so far."""
        return self._meters.values()

    def admit(self, tenant: str) -> Meter:
        """Count a request that asks to come in. Raises `RateLimitedError`."""
        meter = self.meter(tenant)
        meter.admit(self._clock())
        return meter

    def use(self, tenant: str, *, tokens: int = 0, visual_tokens: int = 0, media_bytes: int = 0) -> None:
        """Count what a request has used; see `Meter.use`."""
        meter = self._meters.get(tenant) or self.meter(tenant)
        meter.use(self._clock(), tokens=tokens, visual_tokens=visual_tokens, media_bytes=media_bytes)

    def names(self) -> tuple[str, ...]:
        """Of keys in settings in their order, then of the file's tenants."""
        ours = [tenant_of(key) for key in self._settings.api_keys]
        return (*ours, *self.file.tenants) or (NOBODY_IN_PARTICULAR.tenant,)

    def title(self, tenant: str) -> str:
        """What the log calls a tenant: its name, or its key's place in the settings, of which it has no hash either."""
        keys = self._settings.api_keys
        return next((f"api_keys[{number}]" for number, key in enumerate(keys) if tenant_of(key) == tenant), tenant)

    def known(self) -> Collection[str]:
        """All tenants that have a key, or had one and used it since the server started."""
        return dict.fromkeys((*self.names(), *self._meters)).keys()

    def uses(self) -> list[TenantUse]:
        """What those that are `known` have used."""
        numbers = {tenant_of(key): number for number, key in enumerate(self._settings.api_keys)}
        return [_use(self.meter(name), numbers.get(name, msgspec.UNSET)) for name in self.known()]

    def has_changed(self) -> bool:
        """Whether the file is another one than when it was last looked at. Notes that it was looked at."""
        if self.path is None:
            return False
        stamp = _stamp(self.path)
        is_other, self._stamp = stamp != self._stamp, stamp
        return is_other

    def take(self, file: KeysFile) -> dict[str, list[str]]:
        """Have these keys and limits from now on, for requests that come from now on. Returns ids added and removed.

        Raises:
            InvalidSettingError: A key is in the settings, too.
        """
        ring = self._ring_of(file)
        old, new = ({key.id for key in one.keys} for one in (self.file, file))
        self.file, self._ring, self.fault, self.loaded_at_unix_s = file, ring, None, time.time()
        for name, meter in self._meters.items():
            meter.limit(file.limits_of(name), self._clock())
        return {"added": sorted(new - old), "removed": sorted(old - new)}

    def _ring_of(self, file: KeysFile) -> KeyRing:
        simple = callers_of_settings(self._settings.api_keys, self._settings.admin_keys)
        filed = file.callers()
        if simple.keys() & filed.keys():
            raise InvalidSettingError("The keys file has a key that the settings have, too", hint="Keep one of them")
        return KeyRing(simple | filed)


def _use(meter: Meter, number: Any) -> TenantUse:
    return TenantUse(
        tenant=meter.name,
        api_key=number,
        weight=meter.share.weight,
        num_open=meter.share.num_open,
        num_running=meter.share.num_running,
        num_requests=meter.num_requests,
        num_tokens=meter.num_tokens,
        num_visual_tokens=meter.num_visual_tokens,
        num_media_bytes=meter.num_media_bytes,
        num_refused=meter.num_refused,
    )


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes whenever the file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
