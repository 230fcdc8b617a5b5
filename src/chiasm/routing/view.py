"""What a policy looks at: one request and the fleet at one moment, as values."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from chiasm.protocol.worker import Role
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.coverage.prefixes import Prefix

Topology = Literal["local", "agg", "e-pd", "e-p-d", "auto"]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that may get work now.

    Attributes:
        encode_wait_s: Predicted time until its encoder is through with what it has.
        prefill_wait_s: Predicted time until it is through with the prompts it has.
        num_prefilling: Prompts it was sent that have no first token yet.
        num_decoding: Generations past their first token, which every encode and prefill beside them slows down.
        num_waiting: Sequences that wait for a slot, by the worker's own count.
        encodes_for_others: Whether it may be asked for embeddings.
        hands_kv_to_one: Whether it decodes a prompt with several choices itself.
        crowding: How far it and others with a number take cores from each other: not at all, 0, or fully, 1.
    """

    name: str
    roles: frozenset[Role]
    encode_wait_s: float = 0.0
    prefill_wait_s: float = 0.0
    num_prefilling: int = 0
    num_decoding: int = 0
    num_waiting: int = 0
    encodes_for_others: bool = True
    hands_kv_to_one: bool = False
    crowding: float = 0.0

    def decodes(self, num_choices: int) -> bool:
        """Whether it decodes so many choices of a prompt that it has computed."""
        return "decode" in self.roles or (num_choices > 1 and self.hands_kv_to_one)

    @property
    def is_encoder_only(self) -> bool:
        """Whether it holds no language model."""
        return "prefill" not in self.roles and "decode" not in self.roles

    @property
    def work_s(self) -> float:
        """Predicted work it has, of both kinds: one engine does them in turn."""
        return self.encode_wait_s + self.prefill_wait_s


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """A distinct picture of a request. `positions` are its places among the request's items.

    Attributes:
        has_handle: An embedding of it is on offer, by a handle that has not expired.
        holders: Workers that have its embedding in their own cache, as far as is known.
        has_pixels: Its bytes are at hand, so that it can be encoded again.
    """

    identity: str
    positions: tuple[int, ...]
    num_pixels: int
    has_handle: bool = False
    holders: frozenset[str] = frozenset()
    has_pixels: bool = True


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and what was learned while serving it.

    Attributes:
        known: By worker, the longest start of the prompt that it is known to have computed.
        starts: By picture, the prompt's start up to its first place and with it.
        may_overlap: Workers that compute a prompt while embeddings are on their way.
        failed: Workers that failed the request in prefill or decode.
        failed_encoders: Workers that failed it in encoding, or whose embeddings were no good.
        local_only: Identities that no encoder is to be asked for any more.
    """

    items: tuple[ItemView, ...] = ()
    num_chars: int = 0
    max_output_tokens: int = 256
    num_choices: int = 1
    known: Mapping[str, Prefix] = {}
    starts: Mapping[str, Prefix] = {}
    may_overlap: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    failed_encoders: frozenset[str] = frozenset()
    local_only: frozenset[str] = frozenset()

    def known_chars(self, worker: str) -> int:
        """Characters of the prompt that a worker need not compute again."""
        prefix = self.known.get(worker)
        return prefix.num_chars if prefix is not None else 0

    def known_items(self, worker: str) -> tuple[str, ...]:
        """Identities of the pictures in the start that a worker has computed."""
        prefix = self.known.get(worker)
        return prefix.items if prefix is not None else ()


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that take work now, in the order in which they joined.

    Attributes:
        text_per_s: Requests without pictures that come in a second.
    """

    workers: tuple[WorkerView, ...]
    topology: Topology = "auto"
    costs: StageCosts = StageCosts()
    has_local_fallback: bool = True
    text_per_s: float = 0.0
