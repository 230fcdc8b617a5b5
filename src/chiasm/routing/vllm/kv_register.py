"""Where others find a server's keys and values when the server itself does not say: Mooncake's bootstrap server.

Each server that prefills runs one beside its API. It knows the server's engines by names that change with every start.
"""

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from chiasm.errors import ChiasmError, DeadlineExceededError, EngineDeadError, EngineError
from chiasm.routing.remote.connection import WorkerConnection

_PATH = "/query"


class KvPlace(NamedTuple):
    """The register's address, `http://host:port`, and the engine's name there."""

    register: str
    engine: str


class _Engine(msgspec.Struct):
    engine_id: Annotated[str, Meta(min_length=1, max_length=256)]


class KvRegister:
    """The register of one server, for one of its data-parallel ranks. Lives on one event loop."""

    def __init__(self, address: str, rank: int) -> None:
        """Nothing is asked yet."""
        self._address = address
        self._rank = str(rank)
        self._connection = WorkerConnection(address, None)
        self._connection.name = "that registers keys and values"
        self._engine: str | None = None

    @property
    def place(self) -> KvPlace:
        """What others are told. Raises `EngineDeadError` while the engine's name is not known."""
        if self._engine is None:
            raise EngineDeadError("Nobody could fetch the keys and values: the register of the server does not answer")
        return KvPlace(self._address, self._engine)

    async def look(self, timeout_s: float) -> None:
        """Ask for the engine's name, which a server that was started again has anew.

        The one that is known stays good while this waits, since calls end meanwhile.

        Raises:
            EngineDeadError: Nobody answers there, or the engine has not registered.
            DeadlineExceededError: No answer within `timeout_s`.
            EngineError: It is no such register.
        """
        try:
            self._engine = await self._asked(timeout_s)
        except DeadlineExceededError:  # it is busy: what is known stays good
            raise
        except ChiasmError:
            self._engine = None
            raise

    async def aclose(self) -> None:
        """Let go of it."""
        await self._connection.aclose()

    async def _asked(self, timeout_s: float) -> str:
        body = await self._connection.get(_PATH, timeout_s)
        try:
            engines = msgspec.json.decode(body, type=dict[str, _Engine])
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineError(
                f"Who answers for keys and values is no bootstrap server of Mooncake: {str(error)[:200]}",
                hint="kv_bootstrap is the server's VLLM_MOONCAKE_BOOTSTRAP_PORT, not the port of its API",
            ) from error
        if self._rank not in engines:
            raise EngineDeadError(f"Engine {self._rank} has not registered its keys and values yet")
        return engines[self._rank].engine_id
