"""The embedded engine put together: a model directory, or what some roles need of it, behind one thread.

Prompts are planned on the callers' threads; embeddings are taken in as checked handles; everything with weights happens
on the loop's thread.
"""

import gc
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from msgspec.structs import replace

from chiasm.connectors.base import EmbeddingConnector, embedding_key
from chiasm.engines.embedded.buffers import dtype_of
from chiasm.engines.embedded.core import EngineCore
from chiasm.engines.embedded.decoder.native_decoder import threads_for
from chiasm.engines.embedded.encoder import Encoder
from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.families.pictures import PictureFamily
from chiasm.engines.embedded.families.registry import family_for
from chiasm.engines.embedded.language import LanguageStages, context_tokens
from chiasm.engines.embedded.loop import EngineLoop
from chiasm.engines.embedded.memory import module_bytes
from chiasm.engines.embedded.planner import processor_revision
from chiasm.engines.embedded.revision import model_revision
from chiasm.engines.embedded.tower.pause import Pause
from chiasm.engines.embedded.tower.registry import make_tower
from chiasm.errors import EngineStartError
from chiasm.media.prepare.base import ImagePreparer
from chiasm.protocol.worker import Role
from chiasm.scheduling.encode_budget import EncodeBudget
from chiasm.settings import AdapterSettings, EngineSettings
from chiasm.settings.process import return_freed_memory

Progress = Callable[[str, float], None]
"""Told what is being done and how much of the start is over, from 0 to 1."""

_NO_ADAPTERS = AdapterSettings()


class EmbeddedEngine:
    """One model on this machine, or its tower alone, or its language model alone. Public methods are thread-safe.

    Attributes:
        language: Prefill and decode; None for an encoder alone.
        encoder: None without the role 'encode', and for text-only models.
        weights: Bytes of the decoder's and the tower's.
        short_slice_s: As in the settings.
    """

    def __init__(
        self,
        settings: EngineSettings,
        directory: Path,
        connector: EmbeddingConnector,
        progress: Progress,
        roles: Collection[Role],
        *,
        is_fast: bool = False,
        adapters: AdapterSettings = _NO_ADAPTERS,
    ) -> None:
        """Load what the roles need. `is_fast` gives up exact pixels. Raises `EngineStartError`."""
        progress("Reading configuration", 0.05)
        self.short_slice_s = settings.short_slice_s
        self._pause = Pause(lambda: self.loop.give_way())
        self.family = family_for(directory)
        if is_fast and isinstance(self.family, PictureFamily):
            self.family.reduce_pictures()
        is_encoder_only = set(roles) == {"encode"}
        if is_encoder_only and self.preparer is None:
            raise EngineStartError(
                f"{directory.name} takes no pictures: there is nothing to encode", hint="Start no encoder for it."
            )
        self.dtype = settings.dtype
        self.model_revision = model_revision(directory, settings.dtype)
        settings = replace(settings, threads=threads_for(settings.threads))
        progress("Loading weights", 0.2)
        model = self.family.load(dtype_of(settings.dtype))
        progress("Arranging weights", 0.7)
        self.max_tokens = context_tokens(settings, model)
        self.language: LanguageStages | None = None
        if not is_encoder_only:
            self.language = LanguageStages(
                settings, directory, self.family, model, connector, self.model_revision, adapters
            )
        self.weights = {"decoder": self.language.decoder.weight_bytes} if self.language is not None else {}
        _drop_language(model)
        progress("Preparing caches", 0.9)
        self.encoder = None
        if "encode" in roles and self.preparer is not None:
            self.weights["tower"] = module_bytes(getattr(model.vision, "vision", model.vision))
            self.encoder = self._make_encoder(settings, model, connector)
        if self.language is None or self.encoder is None:
            gc.collect()  # models are full of cycles
            return_freed_memory()
        self.loop = EngineLoop(
            self.core, self.encoder, self._pause, threads=settings.threads, short_slice_s=settings.short_slice_s
        )
        progress("Ready", 1.0)

    @property
    def core(self) -> EngineCore | None:
        """Of prefill and decode."""
        return None if self.language is None else self.language.core

    @property
    def preparer(self) -> ImagePreparer | None:
        """How pictures are prepared; None for a text-only model."""
        return self.family.preparer

    @property
    def embedding_bytes_per_token(self) -> int:
        """What a visual token's embedding takes; 0 where nothing is encoded."""
        width = self.language.embedding_width if self.language and self.preparer else 0
        return width * dtype_of(self.dtype).itemsize

    def _make_encoder(self, settings: EngineSettings, model: LoadedModel, connector: EmbeddingConnector) -> Encoder:
        model.vision = make_tower(model.vision, kind=settings.decoder, threads=settings.threads, pause=self._pause)
        return Encoder(
            self.family,
            model,
            connector,
            model_revision=self.model_revision,
            budget=EncodeBudget(settings.max_encode_embeddings, settings.max_encode_s),
        )

    def embedding_key(self, identity: str, cache_salt: str) -> str:
        """Name of a picture's embedding under this model, in the scope of a salt."""
        return embedding_key(identity, self.model_revision, processor_revision(self.family), cache_salt)


def _drop_language(model: LoadedModel) -> None:
    """Let go of weights that nobody uses from here on: decoders arrange them in their own way."""
    model.text = torch.nn.Module()
    model.lm_head = torch.empty(0)
