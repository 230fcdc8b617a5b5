"""The section of LoRA adapters."""

from typing import Annotated

from msgspec import Meta

from chiasm.settings.base import Section


class AdapterSettings(Section, frozen=True, kw_only=True):
    """LoRA adapters: from where they may be loaded, and what they may take."""

    roots: Annotated[
        tuple[str, ...], Meta(description="Folders below which operators may load adapters; none: none at run time.")
    ] = ()
    preload: Annotated[
        tuple[str, ...],
        Meta(description="Adapters that are there from the start, each 'NAME=DIR'; their folders are allowed, too."),
    ] = ()
    max_loaded: Annotated[int, Meta(ge=1, le=4096, description="Adapters that may be known by name at once.")] = 256
    max_rank: Annotated[int, Meta(ge=1, le=1024, description="Largest rank of an adapter.")] = 128
    max_bytes: Annotated[
        int,
        Meta(
            ge=2**20, description="Weights of adapters in a worker's memory; those not in use go first, and come back."
        ),
    ] = 2**30
    base_names: Annotated[
        tuple[str, ...],
        Meta(description="Further names that an adapter's configuration may have for the model it is for."),
    ] = ()
