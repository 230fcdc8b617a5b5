"""A stream of server-sent events, whatever the pieces in which it comes."""

from chiasm.errors import EngineError
from chiasm.protocol.wire.reading import MAX_EVENT_BYTES

_END = b"\n\n"


class EventStream:
    """Cuts a stream into the payloads of its events, up to its end mark."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_done = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that are complete now. Raises `EngineError` when one has no end."""
        *blocks, self._rest = (self._rest + data).split(_END)
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineError(f"vLLM sent an event of more than {MAX_EVENT_BYTES} bytes")
        payloads: list[bytes] = []
        for block in blocks:
            payload = block.removeprefix(b"data: ")
            if len(payload) == len(block) or self._is_done:  # a comment that keeps the connection alive
                continue
            if payload == b"[DONE]":
                self._is_done = True
            else:
                payloads.append(payload)
        return payloads
