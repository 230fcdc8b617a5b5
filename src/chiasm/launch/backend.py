"""What a server has behind its gateway."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from chiasm.gateway.state import Ingest
from chiasm.protocol.worker import Worker
from chiasm.sharing.link import Link


@runtime_checkable
class Announcing(Protocol):
    """A backend whose workers may be those of other gateways, too."""

    async def keep_announced(self, link: Link) -> None:
        """Tell other gateways of workers and take in those that they tell of, until cancelled.

        May begin before the backend is opened, which may wait for just these workers.
        """
        ...


class Backend(Protocol):
    """A started model, in this process or in others. Must be opened, once, for it to be stopped."""

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        ...

    @property
    def takes_images(self) -> bool:
        """Whether the model has eyes."""
        ...

    def opened(self) -> AbstractAsyncContextManager[tuple[Worker, Ingest]]:
        """Give the gateway its worker and its ingest on the running event loop; stop everything in the end."""
        ...
