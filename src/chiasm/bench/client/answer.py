"""Reading one answer, streamed or whole, into its record."""

import re
from collections.abc import Callable

import msgspec

from chiasm.bench.record import BAD_ANSWER, CUT_OFF, FINISHED, Record, StageTimes

_OK = 200
_MAX_ERROR_BYTES = 64 * 2**10
_MAX_BYTES = 256 * 2**20
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class _Chiasm(msgspec.Struct):
    receipt: StageTimes | None = None


class _Error(msgspec.Struct):
    code: str | int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    chiasm: _Chiasm | None = None
    error: _Error | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error | None = None


_CHUNKS = msgspec.json.Decoder(_Chunk)
_ERRORS = msgspec.json.Decoder(_ErrorBody)


class Answer:
    """Takes an answer's bytes with the instant at which they came. `on_end` is called once, when the record is
    complete.
    """

    def __init__(self, record: Record, on_end: Callable[[], None]) -> None:
        self.record = record
        self._on_end = on_end
        self._line = b""
        self._body: list[bytes] = []
        self._num_bytes = 0
        self._num_chunks = 0
        self._error = ""
        self._is_done = False

    def head(self, status: int, now_ns: int) -> None:
        """The status has come."""
        self.record.head_ns = now_ns
        self.record.status = status

    def body(self, data: bytes, now_ns: int) -> None:
        """A part of the body has come."""
        self._num_bytes += len(data)
        if self.record.streams and self.record.status == _OK:
            *lines, self._line = (self._line + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), now_ns)
        elif self._num_bytes <= (_MAX_BYTES if self.record.status == _OK else _MAX_ERROR_BYTES):
            self._body.append(data)

    def complete(self, now_ns: int) -> None:
        """The answer has ended."""
        record = self.record
        if record.status != _OK:
            self._end(_refusal(b"".join(self._body), record.status), now_ns)
        elif record.streams:
            if not record.is_counted_by_server:
                record.num_output_tokens = self._num_chunks
            self._end(self._error or (FINISHED if self._is_done else CUT_OFF), now_ns)
        else:
            self._end(self._whole(b"".join(self._body)), now_ns)

    def fail(self, outcome: str, now_ns: int) -> None:
        """It ends without having been answered to its end."""
        if not self.record.is_counted_by_server:
            self.record.num_output_tokens = self._num_chunks
        self._end(outcome, now_ns)

    def _event(self, data: bytes, now_ns: int) -> None:
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            chunk = _CHUNKS.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._error = BAD_ANSWER
            return
        if chunk.error is not None:
            self._error = _code(chunk.error, "error_event")
        if any(_has_text(choice) for choice in chunk.choices):
            self._text(now_ns)
        self._take(chunk)

    def _text(self, now_ns: int) -> None:
        record = self.record
        self._num_chunks += 1
        if record.last_ns is None:
            record.first_ns = now_ns
            record.gaps_ns = []
        else:
            record.gaps_ns.append(now_ns - record.last_ns)
        record.last_ns = now_ns

    def _take(self, chunk: _Chunk) -> None:
        record, usage = self.record, chunk.usage
        if usage is not None:
            record.num_prompt_tokens = usage.prompt_tokens if usage.prompt_tokens is not None else usage.total_tokens
            if usage.completion_tokens is not None and record.streams:
                record.num_output_tokens = usage.completion_tokens
                record.is_counted_by_server = True
        if chunk.chiasm is not None:
            record.receipt = chunk.chiasm.receipt

    def _whole(self, body: bytes) -> str:
        try:
            self._take(_CHUNKS.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return BAD_ANSWER
        return FINISHED

    def _end(self, outcome: str, now_ns: int) -> None:
        assert not self.record.outcome, "a request ends once"
        self.record.end_ns = now_ns
        self.record.outcome = outcome
        self._on_end()


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    if choice.text:
        return True
    return delta is not None and bool(delta.content or delta.reasoning_content or delta.reasoning)


def _refusal(body: bytes, status: int) -> str:
    try:
        error = _ERRORS.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    return _code(error or _Error(), f"http_{status}")


def _code(error: _Error, otherwise: str) -> str:
    """The server's own code where it can be a name."""
    return error.code if isinstance(error.code, str) and _CODE.fullmatch(error.code) else otherwise
