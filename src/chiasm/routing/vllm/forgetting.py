"""Deleting from a vLLM server: between two requests, all that it has cached, whoever's it is.

vLLM does not say what of its caches is whose. It drains and clears all of them at once, by calls that it has only in
its development mode: servers that Chiasm starts have it, on sockets that nobody else opens.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from chiasm.errors import ChiasmError, DeadlineExceededError, EngineError, ModelNotFoundError, UnsupportedFeatureError
from chiasm.protocol.deletion import Deleted, Deletion
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.wire.requests import WireRequest
from chiasm.protocol.worker import EncodeRequest, Role
from chiasm.routing.remote.connection import WorkerConnection

logger = logging.getLogger(__name__)
_RESUME_TIMEOUT_S = 10.0
_RESUME_PAUSE_S = 0.2
_NUM_RESUMES = 3
_LEAST_REST_S = 1.0
"""A call for rest that is given up sooner may be overtaken by the one that ends it; the server would rest for good."""
_LOOK_TIMEOUT_S = 1.0
_LONGEST_REST_S = 30.0
"""A rest that lasts longer has lost whoever ordered it: a deletion ends its own sooner."""
_NOT_FOUND = ("no such", "not found")


class _Results(msgspec.Struct):
    results: list[dict[str, Any] | str | None] = []


class _Rest(msgspec.Struct):
    is_paused: bool


class Forgetting:
    """One engine's. Lives on one event loop."""

    def __init__(
        self,
        connection: WorkerConnection,
        model: str,
        roles: Sequence[Role],
        ec_connector: str,
        turn: asyncio.Lock,
    ) -> None:
        """Take what deletions need to know.

        Args:
            connection: To the server.
            model: Its served name.
            roles: The engine's.
            ec_connector: By which embeddings come and go; empty: by none.
            turn: Held while the server rests; all engines of a server share it.
        """
        self._connection = connection
        self._turn = turn
        self._is_at_rest = False
        self._can_rest = True
        self._rests_since_s: float | None = None
        self._clearing: asyncio.Task[list[Mapping[str, Any]]] | None = None
        self._model = model
        self._takes_prompts = "prefill" in roles
        self._ec_connector = ec_connector
        self._open: dict[asyncio.Event, GenerateRequest | EncodeRequest] = {}

    @contextmanager
    def under_way(self, request: GenerateRequest | EncodeRequest) -> Iterator[None]:
        """Have deletions inside the block that cover a request wait for its end."""
        ended = asyncio.Event()
        self._open[ended] = request
        try:
            yield
        finally:
            del self._open[ended]
            ended.set()

    async def forget(self, deletion: Deletion, worker: str, timeout_s: float) -> Deleted:
        """Delete everything when all that it may be about has ended.

        Raises:
            UnsupportedFeatureError: The server cannot be told to.
            DeadlineExceededError: It did not come to rest in time; it goes on serving, and nothing is known.
            EngineError: It could not, or not all of it.
        """
        if deletion.offer is not None:
            return Deleted(worker=worker)  # keys and values of vLLM's own connectors end by themselves
        if self._ec_connector not in ("", "chiasm"):
            raise UnsupportedFeatureError(f"Embeddings of vLLM's '{self._ec_connector}' connector cannot be deleted")
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        await self._take_turn(deletion, deadline_s - _LEAST_REST_S)
        self._clearing = asyncio.create_task(self._cleared(deadline_s))
        self._clearing.add_done_callback(lambda _: self._turn.release())
        answers = await asyncio.shield(self._clearing)  # who gives up does not leave a server behind that rests
        if self._ec_connector and self._takes_prompts:
            await self._until_forgotten(_left_s(deadline_s))
        return Deleted(worker=worker, num_offers=sum(int(one.get("num_offers", 0)) for one in answers))

    async def wake(self) -> None:
        """End a rest that a deletion could not end: the server would take requests and answer none."""
        if not self._turn.locked():
            await self._resume()

    async def look(self) -> None:
        """End a rest that nobody else ends: of a gateway that was killed during a deletion."""
        if not self._can_rest or self._turn.locked():
            return
        now_s, rests = asyncio.get_running_loop().time(), await self._rests()
        if rests is None:
            return
        self._rests_since_s = (self._rests_since_s or now_s) if rests else None
        if self._rests_since_s is not None and now_s - self._rests_since_s > _LONGEST_REST_S:
            logger.warning("A vLLM server was at rest for %.0f s, and is told to go on", now_s - self._rests_since_s)
            self._is_at_rest, self._rests_since_s = True, None
            await self.wake()

    async def _rests(self) -> bool | None:
        """Whether the server is at rest; None where it does not say. Its engine answers between two steps only."""
        try:
            body = await self._connection.get("/is_paused", _LOOK_TIMEOUT_S)
            return msgspec.json.decode(body, type=_Rest).is_paused
        except msgspec.DecodeError:
            self._can_rest = False
        except ChiasmError as error:
            self._can_rest = not _is_unknown_call(error)
        return None

    async def aclose(self) -> None:
        """Give up a deletion; the server is told to go on."""
        if self._clearing is not None:
            self._clearing.cancel()
            await asyncio.wait([self._clearing], timeout=_RESUME_TIMEOUT_S)

    async def _take_turn(self, deletion: Deletion, deadline_s: float) -> None:
        """Wait for requests that the deletion covers, then for other deletions; afterwards the turn is held."""
        try:
            async with asyncio.timeout_at(deadline_s):
                for ended in [ended for ended, request in self._open.items() if _may_leave(deletion, request)]:
                    await ended.wait()
                await self._turn.acquire()
        except TimeoutError:
            raise DeadlineExceededError(
                "Requests that the deletion covers, or another deletion, have not ended in time", hint="Repeat this"
            ) from None

    async def _cleared(self, deadline_s: float) -> list[Mapping[str, Any]]:
        """What the server's processes said while it was at rest."""
        self._is_at_rest = True
        try:
            await self._call("/pause?mode=wait", {}, _left_s(deadline_s))
            return await self._told("chiasm_forget", _left_s(deadline_s))
        finally:
            await self._resume()

    async def _resume(self) -> None:
        """More than one try, however the first ones fail."""
        num_left = _NUM_RESUMES
        while self._is_at_rest:
            num_left -= 1
            try:
                with suppress(UnsupportedFeatureError):  # then it cannot be brought to rest either
                    await self._call("/resume", {}, _RESUME_TIMEOUT_S)
                self._is_at_rest = False
            except ChiasmError:
                if not num_left:
                    raise
                await asyncio.sleep(_RESUME_PAUSE_S)

    async def _until_forgotten(self, timeout_s: float) -> None:
        """A consumer's scheduler forgets with its next step, so that it gets one."""
        step = {"model": self._model, "prompt": "a", "max_tokens": 1}
        await self._call("/v1/completions", step, timeout_s)
        if any(one.get("is_pending") for one in await self._told("chiasm_has_forgotten", timeout_s)):
            raise EngineError("Embeddings are still in use", hint="Repeat this when requests have ended")

    async def _told(self, method: str, timeout_s: float) -> list[Mapping[str, Any]]:
        """Have the server's processes do something of Chiasm's; what they answered."""
        if not self._ec_connector:
            return []
        body = await self._call("/collective_rpc", {"method": method}, timeout_s)
        try:
            found = msgspec.json.decode(body, type=_Results).results
        except msgspec.DecodeError as error:
            raise EngineError("The answer of vLLM's workers cannot be understood") from error
        return [one for one in found if isinstance(one, dict)]

    async def _call(self, path: str, body: Mapping[str, Any], timeout_s: float) -> bytes:
        call = WireRequest(path, (msgspec.json.encode(body),))
        try:
            async with self._connection.post(call, timeout_s) as channel:
                return await self._connection.whole(channel)
        except ChiasmError as error:
            if _is_unknown_call(error):
                raise UnsupportedFeatureError(
                    "The vLLM server cannot be told to forget",
                    hint="Start it with VLLM_SERVER_DEV_MODE=1 where nobody but Chiasm reaches it",
                ) from error
            raise


def _is_unknown_call(error: ChiasmError) -> bool:
    return isinstance(error, ModelNotFoundError) or error.message.strip().lower() in _NOT_FOUND


def _left_s(deadline_s: float) -> float:
    return deadline_s - asyncio.get_running_loop().time()


def _may_leave(deletion: Deletion, request: GenerateRequest | EncodeRequest) -> bool:
    return deletion.covers(request.cache_salt, [item.identity for item in request.items])
