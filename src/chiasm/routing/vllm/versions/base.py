"""What the adapter asks of a version of vLLM."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from chiasm.protocol.kv import KvHandle, KvMetadata
from chiasm.protocol.media import EmbeddingHandle
from chiasm.routing.vllm.kv_register import KvPlace

EC_KIND = "vllm"
"""`connector` of handles whose `address` is a server's own description, as JSON."""


class Described(NamedTuple):
    """What an encoding server said of one embedding: the places of its medium, its grid, and all that it said.

    `times_s`: of a video's frames of patches, where the server says them.
    """

    key: str
    places: tuple[int, ...]
    grid_thw: tuple[int, int, int] | None
    address: str
    times_s: tuple[float, ...] = ()


class Version(Protocol):
    """How one version of vLLM says what OpenAI's API has no words for."""

    @property
    def name(self) -> str:
        """The release, as in '0.32'."""
        ...

    def hands_videos_over(self, family: str) -> bool:
        """Whether all that a model's videos need goes from an encoder to others."""
        ...

    def reference(self, handle: EmbeddingHandle) -> Mapping[str, Any]:
        """The content part that stands for an encoded picture or video."""
        ...

    def ec_params(self, handles: Mapping[int, EmbeddingHandle]) -> Mapping[str, Any]:
        """What a consumer is told of embeddings, by the places of their pictures in the prompt."""
        ...

    def described(self, body: bytes) -> Sequence[Described]:
        """What the answer to an encode call says. Raises `EngineError` when it cannot be understood."""
        ...

    def named_in_events(self, call: str) -> Mapping[str, Any]:
        """Has the server name a call in its cache events, also for blocks that it finds in its cache."""
        ...

    def kv_wanted(self, call: str) -> Mapping[str, Any]:
        """Asks a server to keep a prompt's keys and values for another one."""
        ...

    def kv_taken(self, handle: KvHandle) -> Mapping[str, Any]:
        """Tells a server whose keys and values to take."""
        ...

    def kv_offered(self, params: Mapping[str, Any] | None, metadata: KvMetadata) -> KvHandle | None:
        """The handle for what a server says that it keeps; None when it keeps nothing."""
        ...

    def kv_registered(self, call: str, place: KvPlace, metadata: KvMetadata) -> KvHandle:
        """The handle for what a server keeps of a call without a word, to be found by its place."""
        ...
