"""Questions to an engine in this process, without a server in front of it."""

import time
from typing import Any, Protocol

from chiasm.advisor.profile.asking import Answered
from chiasm.observability.receipt import Receipt


class Told(Protocol):
    """An answer."""

    @property
    def receipt(self) -> Receipt:
        """What it cost, stage by stage."""
        ...


class Chatting(Protocol):
    """`chiasm.LLM`, as far as it is needed here."""

    async def achat(self, messages: list[dict[str, Any]], **options: Any) -> Told:
        """Answer one conversation. Raises `ChiasmError`."""
        ...


class EngineAsking:
    """Asks one engine; see `Asks`."""

    def __init__(self, engine: Chatting) -> None:
        self._engine = engine

    async def ask(self, text: str, *, num_output_tokens: int, picture: bytes | None = None) -> Answered:
        """Ask for a stream, as clients do, and wait for its end. Raises `ChiasmError`."""
        parts: list[dict[str, Any]] = [] if picture is None else [{"type": "image", "image": picture}]
        started_s = time.perf_counter()
        told = await self._engine.achat(
            [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
            max_tokens=num_output_tokens,
            min_tokens=num_output_tokens,
            ignore_eos=True,
            temperature=0,
            stream=True,
        )
        e2e_s = time.perf_counter() - started_s
        first_s = told.receipt.ttft_s
        return Answered(receipt=told.receipt, ttft_s=e2e_s if first_s is None else first_s, e2e_s=e2e_s)
