"""The deadline of a request, as an error of ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chiasm.errors import DeadlineExceededError


@asynccontextmanager
async def until(deadline_s: float) -> AsyncIterator[None]:
    """Bound the block by a time of the running loop's clock. Raises `DeadlineExceededError`."""
    try:
        async with asyncio.timeout_at(deadline_s):
            yield
    except TimeoutError as expired:
        raise DeadlineExceededError("The request's deadline passed", hint="Raise timeout_s or send less.") from expired
