"""Say which item of a request an error is about."""

from collections.abc import Iterator
from contextlib import contextmanager

from chiasm.errors import MediaError, TransferError


@contextmanager
def naming_item(index: int, param: str | None = None) -> Iterator[None]:
    """Re-raise a media or transfer error from the block with the item's index, in its message too, and `param`."""
    try:
        yield
    except (MediaError, TransferError) as error:
        if error.item is not None:
            raise
        raise type(error)(
            f"Media item {index}: {error.message}", hint=error.hint, param=param or error.param, item=index
        ) from error


def renumbered(error: MediaError, index: int, param: str) -> MediaError:
    """The same error, about an item that has this number where the caller counts."""
    cause = error.message if error.item is None else error.message.removeprefix(f"Media item {error.item}: ")
    return type(error)(f"Media item {index}: {cause}", hint=error.hint, param=param, item=index)
