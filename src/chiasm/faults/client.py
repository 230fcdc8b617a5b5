"""A client of the fleet's gateway, which asks as everybody does: over HTTP, reading a stream."""

import asyncio
import time
from types import TracebackType

import aiohttp
import msgspec

from chiasm.faults.questions import Question

FINISHED = "finished"
NO_ANSWER = "no_answer"
"""The connection broke, or the stream ended without its end mark: never right."""
_DATA, _DONE = b"data: ", b"[DONE]"


class Answer(msgspec.Struct):
    """What came of a question. `outcome` is 'finished', 'no_answer' or the code of the error that ended it."""

    outcome: str = ""
    status: int = 0
    tokens: list[str] = []
    receipt_id: str = ""
    elapsed_s: float = 0.0


class Client:
    """Asks one server. Belongs to one event loop; a context manager. Cancelling `ask` closes the connection."""

    def __init__(self, address: str) -> None:
        self._url = f"{address}/v1/chat/completions"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, question: Question, began: asyncio.Event | None = None) -> Answer:
        """Ask and read to the end. `began` is set at the first token, or when there is none."""
        answer, started_s = Answer(), time.perf_counter()
        headers = {"content-type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=2 * question.timeout_s)
        try:
            async with self._session.post(
                self._url, data=question.body(), headers=headers, timeout=timeout
            ) as response:
                answer.status = response.status
                answer.receipt_id = response.headers.get("x-chiasm-receipt-id", "")
                if response.status == 200:
                    await _read(response.content, answer, began)
                else:
                    answer.outcome = msgspec.json.decode(await response.read())["error"]["code"]
        except (aiohttp.ClientError, TimeoutError):
            answer.outcome = NO_ANSWER
        if began is not None:
            began.set()
        answer.elapsed_s = time.perf_counter() - started_s
        return answer


async def _read(lines: aiohttp.StreamReader, answer: Answer, began: asyncio.Event | None) -> None:
    async for line in lines:
        if not line.startswith(_DATA):
            continue
        text = line.removeprefix(_DATA).strip()
        if text == _DONE:
            answer.outcome = answer.outcome or FINISHED
            return
        chunk = msgspec.json.decode(text)
        if "error" in chunk:
            answer.outcome = chunk["error"]["code"]
            continue
        for choice in chunk["choices"]:
            answer.tokens += [entry["token"] for entry in (choice.get("logprobs") or {}).get("content") or ()]
        if answer.tokens and began is not None:
            began.set()
    answer.outcome = NO_ANSWER
