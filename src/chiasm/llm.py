"""Offline use: the served engine, media rules and request checks from Python, without HTTP."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec
import pybase64
from PIL import Image

from chiasm.errors import EngineDeadError, InvalidRequestError
from chiasm.gateway.exchange.account import FINISHED, Account
from chiasm.gateway.openai.chat import ChatDialect
from chiasm.gateway.openai.completions import CompletionDialect
from chiasm.gateway.openai.plan import Dialect, Plan
from chiasm.launch.engine import start_worker
from chiasm.media.ingest import MediaIngest
from chiasm.observability.receipt import Receipt
from chiasm.protocol.generation import ChoiceFinished, GenerateEvent, GenerateRequest, TokenEvent, Usage
from chiasm.settings import Settings, resolve

T = TypeVar("T")
Messages = Sequence[dict[str, Any]]
_TIMEOUT_S = 3600.0
_STOP_TIMEOUT_S = 15.0


class Choice(msgspec.Struct):
    """One answer. `finish_reason` is 'stop' or 'length'."""

    text: str = ""
    token_ids: list[int] = []
    finish_reason: str = ""


class Result(msgspec.Struct, frozen=True):
    """What a request came to."""

    choices: list[Choice]
    usage: Usage
    receipt: Receipt

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text


class LLM:
    """A model in this process.

    Sampling options are those of the OpenAI API (`temperature`, `max_tokens`, `n`, `stop`, `response_format`), with
    the same defaults and checks. Methods may be called from any thread; requests under way at once share steps.

    Pictures are content parts `{"type": "image", "image": X}`, X a path, encoded bytes or a PIL picture, and videos
    `{"type": "video", "video": X}`, X a path or encoded bytes, besides the API's `image_url` and `video_url`. How many
    frames are looked at is an option, as in `mm_processor_kwargs={"num_frames": 16}`.
    """

    def __init__(self, model: str = "", *, settings: Settings | None = None, **engine: Any) -> None:
        """Load a model directory (none: the packaged tiny model).

        Args:
            model: Model directory.
            settings: All sections; replaces environment and defaults.
            engine: Fields of the engine section, for example `max_running=32`.

        Raises:
            EngineStartError: The model cannot be served.
            SettingsError: An unknown field or a bad value.
        """
        values = {f"engine.{name}": value for name, value in engine.items()}
        if model:
            values["engine.model"] = model
        chosen = settings or resolve(values=values).settings
        self._worker, preparer = start_worker(chosen, lambda _what, _share: None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chiasm-llm", daemon=True)
        self._thread.start()
        self._ingest = MediaIngest(chosen.media, preparer)
        self._num_requests = 0

    def chat(self, messages: Messages, **options: Any) -> Result:
        """Answer one conversation."""
        return self._wait(self._run(ChatDialect(), _chat_body(messages, options)))

    def chat_batch(self, conversations: Sequence[Messages], **options: Any) -> list[Result]:
        """Answer several conversations at once, in order. The first error ends the call."""
        return self._wait(self._all(ChatDialect(), [_chat_body(messages, options) for messages in conversations]))

    def generate(self, prompts: Sequence[str] | Sequence[list[int]], **options: Any) -> list[Result]:
        """Continue raw prompts (texts or token ids) at once, in order."""
        bodies = [{"prompt": prompt, **options} for prompt in prompts]
        return self._wait(self._all(CompletionDialect(), bodies))

    async def achat(self, messages: Messages, **options: Any) -> Result:
        """`chat` for an event loop; cancelling it cancels the request."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._run(ChatDialect(), _chat_body(messages, options)), self._loop)
        )

    def stream_chat(self, messages: Messages, **options: Any) -> Iterator[str]:
        """Yield the answer's text as it comes. Closing the iterator cancels the request."""
        texts: SimpleQueue[str | BaseException | None] = SimpleQueue()
        body = _chat_body(messages, options | {"stream": True})
        task = asyncio.run_coroutine_threadsafe(self._stream(body, texts), self._loop)
        try:
            while (text := texts.get(timeout=_TIMEOUT_S)) is not None:
                if isinstance(text, BaseException):
                    raise text
                yield text
        finally:
            task.cancel()

    def close(self) -> None:
        """Stop the engine; open requests end with `EngineDeadError`. Closing twice is harmless."""
        if self._loop.is_running():
            self._wait(self._aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)
            self._loop.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._loop.is_running():
            work.close()
            raise EngineDeadError("This LLM is closed", hint="Make a new one.")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)

    async def _aclose(self) -> None:
        await self._ingest.aclose()
        await self._worker.aclose()

    async def _all(self, dialect: Dialect, bodies: Sequence[dict[str, Any]]) -> list[Result]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run(dialect, body)) for body in bodies]
        return [task.result() for task in tasks]

    async def _run(self, dialect: Dialect, body: dict[str, Any]) -> Result:
        plan = dialect.plan(msgspec.json.encode(body))
        choices = [Choice() for _ in range(plan.sampling.n)]
        account = Account(self._next_id(), self._worker.info.model)
        async with aclosing(self._events(plan, account)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    choice = choices[event.choice]
                    choice.text += event.text
                    choice.token_ids.extend(event.token_ids)
                elif isinstance(event, ChoiceFinished):
                    choices[event.choice].finish_reason = event.reason
                else:
                    account.add([event])
        return Result(choices, account.usage, account.receipt(FINISHED))

    async def _stream(self, body: dict[str, Any], texts: "SimpleQueue[str | BaseException | None]") -> None:
        try:
            plan = ChatDialect().plan(msgspec.json.encode(body))
            async with aclosing(self._events(plan, Account(self._next_id(), self._worker.info.model))) as events:
                async for event in events:
                    if isinstance(event, TokenEvent) and event.text:
                        texts.put(event.text)
            texts.put(None)
        except Exception as error:  # noqa: BLE001 - raised again in the reader's thread
            texts.put(error)

    async def _events(self, plan: Plan, account: Account) -> AsyncGenerator[GenerateEvent, None]:
        if len(plan.prompts) != 1:
            raise InvalidRequestError("One prompt per request", hint="Pass several prompts as a list to generate().")
        items = await self._ingest.collect(plan.references, plan.timeout_s or _TIMEOUT_S, account.clock)
        account.num_items = len(items)
        request = GenerateRequest(
            request_id=self._next_id(),
            prompt=plan.prompts[0],
            items=tuple(items),
            sampling=plan.sampling,
            stream=plan.is_stream,
            timeout_s=plan.timeout_s or _TIMEOUT_S,
        )
        account.dispatched()
        async with aclosing(self._worker.generate(request)) as events:
            async for event in events:
                if plan.is_stream:  # else all of it comes at its end
                    account.first_token()
                yield event

    def _next_id(self) -> str:
        self._num_requests += 1
        return f"llm-{self._num_requests}"


def _chat_body(messages: Messages, options: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [_message(message) for message in messages], **options}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_part(part) for part in content]}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind not in ("image", "video"):
        return part
    data = pybase64.b64encode(_encoded(kind, part.get(kind))).decode()
    return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:application/octet-stream;base64,{data}"}}


def _encoded(kind: str, medium: Any) -> bytes:
    if isinstance(medium, bytes):
        return medium
    if isinstance(medium, str | Path):
        return Path(medium).read_bytes()
    if kind == "image" and isinstance(medium, Image.Image):
        file = BytesIO()
        medium.save(file, "PNG", compress_level=1)
        return file.getvalue()
    what = "An image part holds" if kind == "image" else "A video part holds"
    forms = "a path, encoded bytes or a PIL picture" if kind == "image" else "a path or encoded bytes"
    raise InvalidRequestError(f"{what} a {type(medium).__name__}", hint=f"Give {forms}.")
