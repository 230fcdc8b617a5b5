"""What one gateway does and all have to do: told in order, and confirmed by each."""

import msgspec

from chiasm.protocol.deletion import Deletion


class DeletionAct(msgspec.Struct, frozen=True, tag="deletion", omit_defaults=True):
    """Something is deleted; of a tenant's, all under its own name, too."""

    deletion: Deletion
    tenant: str | None = None


class DrainAct(msgspec.Struct, frozen=True, tag="drain", omit_defaults=True):
    """A worker gets no more work, or work again."""

    worker: str
    is_over: bool = False


Act = DeletionAct | DrainAct
encode_act = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Act).decode


def decode_act(payload: bytes) -> Act | None:
    """Read an act; None for one of another version, which this gateway cannot carry out."""
    try:
        return _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None


class Notes(msgspec.Struct, frozen=True, array_like=True):
    """Hints about contents, and up to which act their sender had carried out all when it sent them."""

    acts_at: str
    notes: bytes


encode_notes = msgspec.msgpack.Encoder().encode
_decode_notes = msgspec.msgpack.Decoder(Notes).decode


def decode_notes(payload: bytes) -> Notes | None:
    """Read hints; None where they cannot be understood."""
    try:
        return _decode_notes(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
