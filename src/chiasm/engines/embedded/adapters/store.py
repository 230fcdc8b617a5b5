"""Adapters in memory: loaded when first used, the least recently used gone first, never while a request uses it."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from chiasm.adapters.files import AdapterFiles, read_adapter
from chiasm.adapters.sizes import BaseModel
from chiasm.engines.embedded.adapters.weights import adapter_layers, num_bytes_of
from chiasm.engines.embedded.decoder.low_rank import AdapterLayers, ArrangedAdapter
from chiasm.errors import AdapterError, LayoutMismatchError, OverloadedError
from chiasm.observability.memory import MemoryPart
from chiasm.protocol.adapters import AdapterInfo, AdapterLoad, AdapterRef
from chiasm.settings import AdapterSettings


@dataclass
class _Resident:
    arranged: ArrangedAdapter
    num_pins: int = 0
    is_unloaded: bool = False


class AdapterLease:
    """An adapter that stays in memory until `close`. Any thread may call it; once is enough."""

    def __init__(self, arranged: ArrangedAdapter, release: Callable[[], None]) -> None:
        self.arranged = arranged
        self._release: Callable[[], None] | None = release

    def close(self) -> None:
        """The request has ended."""
        release, self._release = self._release, None
        if release is not None:
            release()


class AdapterStore:
    """Adapters of one decoder, by revision. Thread-safe; `load` and `acquire` block while files are read.

    Attributes:
        num_loads: How often an adapter's files were read into memory.
        num_evicted: How often one went to make room.
    """

    def __init__(
        self, arrange: Callable[[AdapterLayers], ArrangedAdapter], base: BaseModel, settings: AdapterSettings
    ) -> None:
        self._arrange = arrange
        self._base = base
        self._settings = settings
        self._lock = Lock()
        self._loading = Lock()  # one at a time, so that what is being loaded is bounded, too
        self._resident: OrderedDict[str, _Resident] = OrderedDict()  # least recently used first
        self.num_bytes = 0
        self.num_loads = 0
        self.num_evicted = 0

    @property
    def num_resident(self) -> int:
        """Adapters in memory."""
        return len(self._resident)

    def memory_parts(self) -> tuple[MemoryPart, ...]:
        """What adapters take; nothing as long as there are none."""
        most = self._settings.max_bytes
        part = MemoryPart(name="adapters", kind="cache", used_bytes=self.num_bytes, reserved_bytes=most)
        return (part,) if self.num_resident else ()

    def load(self, load: AdapterLoad) -> AdapterInfo:
        """Check an adapter's files and bring it into memory.

        Raises:
            AdapterError: Its files are not allowed, or do not fit this model.
            OverloadedError: Adapters in use leave no room.
        """
        with self._loading:
            files = read_adapter(load.directory, self._base, self._settings)
            arranged = self._brought(files, num_pins=0).arranged
        return AdapterInfo(
            ref=AdapterRef(name=load.name, revision=files.revision, directory=files.directory),
            rank=files.config.r,
            targets=files.targets,
            num_bytes=arranged.num_bytes,
        )

    def try_acquire(self, ref: AdapterRef) -> AdapterLease | None:
        """Pin an adapter that is in memory; None for others. Never waits for one that is being loaded."""
        with self._lock:
            resident = self._resident.get(ref.revision)
            if resident is None:
                return None
            resident.num_pins += 1
            self._resident.move_to_end(ref.revision)
        return self._lease(ref.revision, resident)

    def acquire(self, ref: AdapterRef) -> AdapterLease:
        """Pin an adapter for a request, reading its files where it is not in memory.

        Raises:
            LayoutMismatchError: The files here are not those that the caller means.
            AdapterError: They cannot be used any more.
            OverloadedError: Adapters in use leave no room.
        """
        lease = self.try_acquire(ref)
        if lease is not None:
            return lease
        with self._loading:
            lease = self.try_acquire(ref)
            if lease is not None:
                return lease
            files = read_adapter(ref.directory, self._base, self._settings)
            if files.revision != ref.revision:
                raise LayoutMismatchError(
                    f"The files of adapter '{ref.name}' have revision {files.revision} here; {ref.revision} is meant",
                    hint="The same files must lie on every worker; after a change, unload the adapter and load it",
                )
            return self._lease(ref.revision, self._brought(files, num_pins=1))

    def unload(self, ref: AdapterRef) -> None:
        """Let go of an adapter: at once, or when the last request that uses it has ended."""
        with self._lock:
            resident = self._resident.get(ref.revision)
            if resident is None:
                return
            resident.is_unloaded = True
            if not resident.num_pins:
                self._drop(ref.revision)

    def _lease(self, revision: str, resident: _Resident) -> AdapterLease:
        return AdapterLease(resident.arranged, lambda: self._release(revision, resident))

    def _release(self, revision: str, resident: _Resident) -> None:
        with self._lock:
            resident.num_pins -= 1
            if not resident.num_pins and resident.is_unloaded and self._resident.get(revision) is resident:
                self._drop(revision)

    def _brought(self, files: AdapterFiles, *, num_pins: int) -> _Resident:
        """In memory already, or brought there, with more pins. Call with `_loading` held."""
        with self._lock:
            resident = self._resident.get(files.revision)
            if resident is not None:
                resident.is_unloaded = False
                resident.num_pins += num_pins
                return resident
        self._make_room(num_bytes_of(files, self._base))  # before any is taken
        resident = _Resident(self._arrange(adapter_layers(files, self._base)), num_pins)
        self._make_room(resident.arranged.num_bytes)  # a little more, once arranged
        with self._lock:
            self._resident[files.revision] = resident
            self.num_bytes += resident.arranged.num_bytes
            self.num_loads += 1
        return resident

    def _make_room(self, num_bytes: int) -> None:
        most = self._settings.max_bytes
        if num_bytes > most:
            raise AdapterError(f"The adapter takes {num_bytes} bytes", hint=f"adapters.max_bytes is {most}")
        with self._lock:
            idle = [revision for revision, one in self._resident.items() if not one.num_pins]
            while self.num_bytes + num_bytes > most and idle:
                self._drop(idle.pop(0))
                self.num_evicted += 1
            if self.num_bytes + num_bytes > most:
                raise OverloadedError(
                    f"Adapters in use take {self.num_bytes} of {most} bytes; {num_bytes} more do not fit",
                    hint="Try again when requests have ended, or raise adapters.max_bytes",
                )

    def _drop(self, revision: str) -> None:
        self.num_bytes -= self._resident.pop(revision).arranged.num_bytes
