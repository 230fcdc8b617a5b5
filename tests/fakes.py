"""Stand-ins for what the gateway talks to: a worker that follows a script, and media that need no bytes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable

from chiasm.errors import ChiasmError, MediaDecodeError
from chiasm.observability.receipt import Span, StageClock
from chiasm.protocol.generation import (
    ChoiceFinished,
    GenerateEvent,
    GenerateRequest,
    RequestFinished,
    TextPart,
    TextPrompt,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.worker import EncodeResponse, WorkerInfo, WorkerStats

Script = Callable[[GenerateRequest], AsyncIterator[GenerateEvent]]


def words_of(request: GenerateRequest) -> list[str]:
    """What the default script answers: the last text of the prompt, word by word, spaces kept."""
    if isinstance(request.prompt, TextPrompt):
        text = request.prompt.text
    elif hasattr(request.prompt, "token_ids"):
        text = " ".join(str(token) for token in request.prompt.token_ids)
    else:
        parts = request.prompt.messages[-1].parts
        text = next((part.text for part in reversed(parts) if isinstance(part, TextPart)), "nothing")
    words = text.split(" ")
    return [word if index == 0 else " " + word for index, word in enumerate(words)]


def finished(request: GenerateRequest, num_output_tokens: int) -> RequestFinished:
    """The end of a request, with counts that tests can check."""
    usage = Usage(
        num_prompt_tokens=10 + 4 * len(request.items),
        num_output_tokens=num_output_tokens,
        num_cached_tokens=2,
        num_visual_tokens=4 * len(request.items),
    )
    return RequestFinished(usage)


def token(choice: int, text: str, request: GenerateRequest) -> TokenEvent:
    """One output token, with made-up log probabilities when they were asked for."""
    num_top = request.sampling.num_top_logprobs
    if num_top is None:
        return TokenEvent(choice, text, (len(text),))
    top = tuple(TokenLogprob(i, f"t{i}", f"t{i}".encode(), -1.0 - i) for i in range(num_top))
    return TokenEvent(choice, text, (len(text),), (TokenLogprob(len(text), text, text.encode(), -0.5, top),))


def say(delay_s: float = 0.0) -> Script:
    """Answer with the prompt's own words, one event each, `delay_s` apart."""

    async def script(request):
        words = words_of(request)[: request.sampling.max_tokens]
        for word in words:
            for choice in range(request.sampling.n):
                await asyncio.sleep(delay_s)
                yield token(choice, word, request)
        for choice in range(request.sampling.n):
            yield ChoiceFinished(choice, "length" if request.sampling.max_tokens == len(words) else "stop")
        yield finished(request, len(words) * request.sampling.n)

    return script


def fail(error: Exception, after: int = 0) -> Script:
    """Say `after` words, then raise."""

    async def script(request):
        for word in words_of(request)[:after]:
            await asyncio.sleep(0.01)
            yield token(0, word, request)
        raise error

    return script


def hang(after: int = 0) -> Script:
    """Say `after` words, then say nothing for good."""

    async def script(request):
        for word in words_of(request)[:after]:
            await asyncio.sleep(0.01)
            yield token(0, word, request)
        await asyncio.Event().wait()

    return script


def by_prompt() -> Script:
    """Choose by the prompt's first word: 'hang N ...', 'fail N ...', 'slow ...', or anything else."""

    def script(request):
        words = [word.strip() for word in words_of(request)]
        if words[0] == "hang":
            return hang(int(words[1]))(request)
        if words[0] == "fail":
            return fail(ChiasmError("told to fail"), int(words[1]))(request)
        return say(0.005 if words[0] == "slow" else 0.0)(request)

    return script


class FakeWorker:
    """Follows a script; counts what was started, finished and cancelled."""

    def __init__(self, script: Script | None = None, *, takes_images: bool = True) -> None:
        self.script = script or say()
        self.requests: list[GenerateRequest] = []
        self.num_open = 0
        self.num_finished = 0
        self.num_failed = 0
        self.num_cancelled = 0
        self.is_healthy = True
        self.started = asyncio.Event()
        self.info = WorkerInfo(
            model="fake",
            family="fake",
            roles=("encode", "prefill", "decode"),
            dtype="float32",
            device="cpu",
            max_model_tokens=4096,
            takes_images=takes_images,
            model_revision="m1",
            processor_revision="p1",
            started_at_unix_s=1.7e9,
        )

    def stats(self) -> WorkerStats:
        return WorkerStats(
            is_healthy=self.is_healthy,
            num_running=self.num_open,
            num_waiting=0,
            num_free_slots=16,
            num_cached_blocks=0,
            num_cached_embeddings=0,
            num_held_embeddings=0,
            num_open_requests=self.num_open,
            totals={"finished_requests": float(self.num_finished)},
        )

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        self.requests.append(request)
        self.num_open += 1
        self.started.set()
        clock, first_s = StageClock(), None
        try:
            async for event in self.script(request):
                first_s = clock.now_s() if first_s is None else first_s
                if isinstance(event, RequestFinished):
                    half_s = first_s / 2
                    spans = (Span("prompt", 0.0, half_s), Span("prefill", half_s, first_s))
                    event = RequestFinished(event.usage, spans)
                yield event
            self.num_finished += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        except Exception:
            self.num_failed += 1
            raise
        finally:
            self.num_open -= 1

    async def encode(self, request):
        return EncodeResponse(())

    async def aclose(self) -> None:
        self.is_healthy = False


class FakeIngest:
    """Makes an item of every reference. URLs that start with 'hang:' never arrive, those with 'bad:' are broken."""

    def __init__(self) -> None:
        self.num_open = 0
        self.num_cancelled = 0
        self.lookups = {"hit": 0, "revalidated": 0, "changed": 0, "miss": 0}
        self.started = asyncio.Event()

    def lease(self):
        return None

    @property
    def spooled_bytes(self):
        return 0

    @property
    def fetch_lookups(self):
        return self.lookups

    @property
    def kept_bytes(self):
        return 0

    def num_spooled(self, identity):
        return 0

    def forget(self, *, identity=None, tenant=None):
        return 0

    async def collect(self, references, deadline_s, clock, lease, tenant):
        self.num_open += 1
        self.started.set()
        try:
            with clock.stage("fetch"):
                return [await self._item(index, reference) for index, reference in enumerate(references)]
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_open -= 1

    async def collect_each(self, references, deadline_s, clock, lease, tenant):
        self.num_open += 1
        try:
            return [await self._item_or_error(index, reference) for index, reference in enumerate(references)]
        finally:
            self.num_open -= 1

    async def aclose(self) -> None:
        assert self.num_open == 0

    async def _item_or_error(self, index, reference):
        try:
            return await self._item(index, reference)
        except MediaDecodeError as error:
            return error

    async def _item(self, index, reference):
        if reference.url.startswith("hang:"):
            await asyncio.Event().wait()
        if reference.url.startswith("bad:"):
            raise MediaDecodeError(f"Media item {index}: broken", param=reference.param, item=index)
        data = reference.url.encode()
        return MediaItem(
            identity=hashlib.sha256(data).hexdigest(), format="png", width=8, height=8, source=InlineSource(data)
        )
