"""The adapters that clients may name as their model: what operators have loaded, under which name."""

import asyncio
import time

import msgspec

from chiasm.adapters.files import preloaded
from chiasm.errors import AdapterError, ModelNotFoundError, OverloadedError, UnsupportedFeatureError
from chiasm.protocol.adapters import Adaptable, AdapterInfo, AdapterLoad
from chiasm.protocol.worker import Worker
from chiasm.settings import AdapterSettings

_TIMEOUT_S = 60.0


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter of this server and when it came."""

    info: AdapterInfo
    loaded_at_unix_s: float


class Adapters:
    """Names and the adapters behind them. Belongs to one event loop; the weights are the worker's."""

    def __init__(self, worker: Worker, max_loaded: int) -> None:
        self._worker = worker
        self._max_loaded = max_loaded
        self._by_name: dict[str, LoadedAdapter] = {}
        self._changing = asyncio.Lock()

    def all(self) -> list[LoadedAdapter]:
        """In the order of their loading."""
        return list(self._by_name.values())

    def find(self, name: str) -> AdapterInfo | None:
        """The adapter of that name."""
        found = self._by_name.get(name)
        return None if found is None else found.info

    async def load(self, name: str, directory: str) -> LoadedAdapter:
        """Have every worker load an adapter, then let clients name it.

        The same files again change nothing but the folder from which they are read when they are needed again.

        Raises:
            AdapterError: The name is taken, or the files are refused.
            OverloadedError: There are too many, or adapters in use leave no room.
            UnsupportedFeatureError: This engine computes with no adapters.
        """
        worker = self._adaptable()
        async with self._changing:
            known = self._by_name.get(name)
            if known is None and len(self._by_name) >= self._max_loaded:
                raise OverloadedError(f"{self._max_loaded} adapters are loaded", hint="See adapters.max_loaded")
            if name == self._worker.info.model:
                raise AdapterError(f"'{name}' is the name of the model itself", hint="Choose another name")
            info = await worker.load_adapter(AdapterLoad(name=name, directory=directory), _TIMEOUT_S)
            if known is not None and known.info.ref.revision != info.ref.revision:
                await self._unload_unless_named(info)
                raise AdapterError(
                    f"'{name}' has revision {known.info.ref.revision}, the folder now {info.ref.revision}",
                    hint="Unload it first, or choose another name",
                )
            loaded_at_unix_s = known.loaded_at_unix_s if known is not None else time.time()
            loaded = self._by_name[name] = LoadedAdapter(info=info, loaded_at_unix_s=loaded_at_unix_s)
            return loaded

    async def preload(self, settings: AdapterSettings) -> None:
        """Load what the settings name. Raises what `load` raises."""
        for name, directory in preloaded(settings):
            await self.load(name, directory)

    async def unload(self, name: str) -> AdapterInfo:
        """Let no new request name an adapter; those under way finish, then its memory is free.

        Raises:
            ModelNotFoundError: There is none of that name.
        """
        async with self._changing:
            found = self._by_name.pop(name, None)
            if found is None:
                raise ModelNotFoundError("No adapter of this name is loaded", hint="GET /admin/adapters lists them")
            await self._unload_unless_named(found.info)
            return found.info

    async def _unload_unless_named(self, info: AdapterInfo) -> None:
        """The same files may be known under several names."""
        revision = info.ref.revision
        if not any(one.info.ref.revision == revision for one in self._by_name.values()):
            await self._adaptable().unload_adapter(info.ref, _TIMEOUT_S)

    def _adaptable(self) -> Adaptable:
        if not isinstance(self._worker, Adaptable):
            raise UnsupportedFeatureError("This engine computes with no adapters")
        return self._worker
