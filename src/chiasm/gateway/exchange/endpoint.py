"""The ASGI end of a generation API."""

from starlette.types import Receive, Scope, Send

from chiasm.gateway.exchange.exchange import Exchange
from chiasm.gateway.openai.plan import Dialect
from chiasm.gateway.state import Gateway


class GenerationEndpoint:
    """An ASGI application that serves one dialect. Not a Starlette function: streaming writes ASGI messages itself."""

    def __init__(self, gateway: Gateway, dialect: Dialect) -> None:
        self._gateway = gateway
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await Exchange(self._gateway, self._dialect, scope, receive, send).run()
