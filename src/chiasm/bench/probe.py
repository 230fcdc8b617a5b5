"""What the server under load understands: asked before anything is planned."""

import aiohttp

from chiasm.bench.target import Target
from chiasm.bench.workload.bodies import Dialect
from chiasm.bench.workload.classes import PATHS, Kind
from chiasm.errors import AuthenticationError, EngineError

_PROBE_TIMEOUT_S = 120.0
_CONNECT_TIMEOUT_S = 10.0


async def probe(target: Target, kinds: set[Kind], model: str | None) -> Dialect:
    """Ask the server for its model and try which extensions it takes, with one tiny request each.

    Raises:
        EngineError: Nobody answers, or not as the API says.
        AuthenticationError: It wants a key, or another one.
    """
    headers = {"Authorization": target.headers.split(b": ", 1)[1].strip().decode()} if target.headers else {}
    timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            name = model or await _model(session, target)
            return await _dialect(session, target, kinds, name)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(
            f"No answer from {target.url}: {type(error).__name__}", hint="Is it running? `chiasm serve` starts a server"
        ) from error


async def _model(session: aiohttp.ClientSession, target: Target) -> str:
    async with session.get(f"{target.url}/v1/models") as response:
        _check_key(response.status)
        try:
            return str((await response.json(content_type=None))["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EngineError(
                f"{target.url}/v1/models names no model (HTTP status {response.status})", hint="Name it with --model"
            ) from error


async def _dialect(session: aiohttp.ClientSession, target: Target, kinds: set[Kind], model: str) -> Dialect:
    generating: list[Kind] = [kind for kind in ("chat", "completions") if kind in kinds]
    if not generating:
        return Dialect(model=model, has_exact_length=False, has_receipts=False)
    kind = generating[0]
    for has_exact_length, has_receipts in ((True, True), (True, False), (False, False)):
        dialect = Dialect(model=model, has_exact_length=has_exact_length, has_receipts=has_receipts)
        async with session.post(target.url + PATHS[kind], json=_question(kind, dialect)) as response:
            _check_key(response.status)
            if response.status == 200:
                return dialect
            status = response.status
    raise EngineError(f"The server refuses the simplest request to {PATHS[kind]} (HTTP status {status})")


def _question(kind: Kind, dialect: Dialect) -> dict[str, object]:
    body: dict[str, object] = {"model": dialect.model, "max_tokens": 1, "temperature": 0}
    body |= {"prompt": "Hello"} if kind == "completions" else {"messages": [{"role": "user", "content": "Hello"}]}
    if dialect.has_exact_length:
        body |= {"min_tokens": 1, "ignore_eos": True}
    if dialect.has_receipts:
        body["chiasm"] = {"receipt": True}
    return body


def _check_key(status: int) -> None:
    if status in (401, 403):
        raise AuthenticationError("The server wants an API key", hint="--api-key KEY, or CHIASM_API_KEY")
