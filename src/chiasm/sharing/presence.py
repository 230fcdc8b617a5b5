"""What a gateway says of itself while it is there."""

import msgspec

from chiasm.sharing.base import FIRST


class SharedWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker that does not belong to one gateway alone. `host` is where a Unix socket is; empty for TCP."""

    name: str
    address: str
    host: str = ""


class Presence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gateway's announcement.

    Attributes:
        is_serving: Whether it takes requests, and may therefore know anything.
        acts_at: Position of the last act that it has carried out.
        workers: Those that it knows at first hand, not from other gateways.
    """

    is_serving: bool = False
    acts_at: str = FIRST
    workers: tuple[SharedWorker, ...] = ()


def decode_presence(record: bytes) -> Presence:
    """Read an announcement; one that cannot be understood says nothing."""
    try:
        return msgspec.msgpack.decode(record, type=Presence)
    except (msgspec.DecodeError, RecursionError):
        return Presence()


encode_presence = msgspec.msgpack.Encoder().encode
