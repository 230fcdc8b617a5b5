"""Deleting from a vLLM server: between two requests, all that it has cached, whoever's it is.

vLLM does not say what of its caches is whose. It drains and clears all of them at once, by calls that it has only in
its development mode: servers that Chiasm starts have it, on sockets that nobody else opens.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from chiasm.errors import ChiasmError, DeadlineExceededError, EngineError, UnsupportedFeatureError
from chiasm.protocol.deletion import Deleted, Deletion
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.wire.requests import WireRequest
from chiasm.protocol.worker import EncodeRequest, Role
from chiasm.routing.remote.connection import WorkerConnection

_RESUME_TIMEOUT_S = 10.0
_NOT_FOUND = ("no such", "not found")


class _Results(msgspec.Struct):
    results: list[dict[str, Any] | str | None] = []


class Forgetting:
    """One server's. Lives on one event loop."""

    def __init__(self, connection: WorkerConnection, model: str, roles: Sequence[Role], ec_connector: str) -> None:
        """Take the server's connection and served name; `ec_connector` is by which embeddings come and go, or empty."""
        self._connection = connection
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
        for ended in [ended for ended, request in self._open.items() if _may_leave(deletion, request)]:
            await ended.wait()
        try:
            await self._call("/pause?mode=wait", {}, timeout_s)
            answers = await self._told("chiasm_forget", timeout_s)
        finally:
            await self._resume()
        if self._ec_connector and self._takes_prompts:
            await self._until_forgotten(timeout_s)
        return Deleted(worker=worker, num_offers=sum(int(one.get("num_offers", 0)) for one in answers))

    async def _resume(self) -> None:
        """A server that stays at rest would take requests and answer none: more than one try."""
        for is_last in (False, False, True):
            try:
                await self._call("/resume", {}, _RESUME_TIMEOUT_S)
            except DeadlineExceededError:
                if is_last:
                    raise
            else:
                return

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
            if error.message.strip().lower() in _NOT_FOUND:
                raise UnsupportedFeatureError(
                    "The vLLM server cannot be told to forget",
                    hint="Start it with VLLM_SERVER_DEV_MODE=1 where nobody but Chiasm reaches it",
                ) from error
            raise


def _may_leave(deletion: Deletion, request: GenerateRequest | EncodeRequest) -> bool:
    return deletion.covers(request.cache_salt, [item.identity for item in request.items])
