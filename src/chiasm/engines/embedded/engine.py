"""The embedded engine put together: a model directory in, planned prompts and running sequences out.

Prompts are planned on the callers' threads; embeddings are taken in as checked handles; everything with weights happens
on the loop's thread.
"""

import itertools
import os
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from chiasm.cache.block_hash import MediaSpan, block_hashes
from chiasm.connectors.base import EmbeddingConnector, ExpectedEmbedding, embedding_key
from chiasm.engines.embedded.buffers import bytes_tensor, dtype_of
from chiasm.engines.embedded.core import EngineCore
from chiasm.engines.embedded.decoder.registry import make_decoder
from chiasm.engines.embedded.encoder import Encoder
from chiasm.engines.embedded.families.registry import family_for
from chiasm.engines.embedded.loop import EngineLoop
from chiasm.engines.embedded.output.stream import OutputStream
from chiasm.engines.embedded.prompt.render import PromptRenderer
from chiasm.engines.embedded.revision import model_revision
from chiasm.engines.embedded.sampling.grammar import GrammarCompiler
from chiasm.engines.embedded.sampling.sampler import SequenceSampler
from chiasm.engines.embedded.sequence import EventSink, PlannedPrompt, Sequence
from chiasm.errors import ContextLengthError
from chiasm.media.prepare.base import ImagePlan, ImagePreparer
from chiasm.protocol.generation import GenerateRequest, SamplingParams
from chiasm.protocol.media import EmbeddingHandle
from chiasm.scheduling.scheduler import Sequence as Scheduled
from chiasm.settings import EngineSettings

Progress = Callable[[str, float], None]
"""Told what is being done and how much of the start is over, from 0 to 1."""


@dataclass(frozen=True)
class PlannedRequest:
    """A request that fits: its prompt, and sampling parameters with `max_tokens` filled in."""

    prompt: PlannedPrompt
    item_keys: tuple[str, ...]  # embedding key of each picture in the prompt, in order
    sampling: SamplingParams


class EmbeddedEngine:
    """One model on this machine. Public methods are thread-safe."""

    def __init__(
        self, settings: EngineSettings, directory: Path, connector: EmbeddingConnector, progress: Progress
    ) -> None:
        progress("Reading configuration", 0.05)
        self.family = family_for(directory)
        self.dtype = settings.dtype
        self.model_revision = model_revision(directory, settings.dtype)
        self._connector = connector
        self._renderer = PromptRenderer(directory, self.family)
        self._grammars = GrammarCompiler(self._renderer.tokenizer)
        self._keys = itertools.count()
        progress("Loading weights", 0.2)
        model = self.family.load(dtype_of(settings.dtype))
        text: Any = model.text
        progress("Arranging weights", 0.7)
        threads = settings.threads or os.cpu_count() or 1
        self._decoder = make_decoder(
            model,
            self.family.frequency_axes,
            kind=settings.decoder,
            pack_weights=settings.pack_weights,
            threads=threads,
        )
        self.max_tokens = min(settings.max_model_tokens, int(text.config.max_position_embeddings))
        self._vocab_size = len(model.lm_head)
        text.layers = None  # the decoder has its own arrangement
        progress("Preparing caches", 0.9)
        self.core = EngineCore(
            self._decoder,
            num_slots=settings.max_running,
            max_tokens=self.max_tokens,
            max_step_tokens=settings.max_step_tokens,
            max_waiting=settings.max_waiting,
            prefix_cache_bytes=settings.prefix_cache_bytes,
        )
        self.encoder = self._make_encoder(model, settings.max_encode_embeddings)
        self.loop = EngineLoop(self.core, self.encoder, threads=threads)
        progress("Ready", 1.0)

    @property
    def preparer(self) -> ImagePreparer | None:
        """How pictures are prepared; None for a text-only model."""
        return self.family.preparer

    def embedding_key(self, identity: str) -> str:
        """Name of a picture's embedding under this model."""
        return embedding_key(identity, self.model_revision, self._processor_revision)

    def plan(self, request: GenerateRequest, plans: Seq[ImagePlan]) -> PlannedRequest:
        """Turn a request into tokens, positions and hashes. `plans` has one entry per item of the request.

        Raises:
            ContextLengthError: Prompt and asked-for output do not fit.
            RequestError: The prompt cannot be rendered.
        """
        rendered = self._renderer.render(request.prompt, plans)
        token_ids = np.asarray(rendered.token_ids, dtype=np.int64)
        sampling = self._fit(request.sampling, len(token_ids))
        positions, next_position = self.family.positions(len(token_ids), rendered.images)
        keys = tuple(self.embedding_key(request.items[item].identity) for item in rendered.items)
        media = tuple(
            MediaSpan(key, image.offset, image.num_tokens) for key, image in zip(keys, rendered.images, strict=True)
        )
        is_row = np.zeros(len(token_ids), bool)
        image_token_id = self.family.image_token_id
        for image in rendered.images:
            place = slice(image.offset, image.offset + image.num_tokens)
            is_row[place] = token_ids[place] == image_token_id
        prompt = PlannedPrompt(
            token_ids=token_ids,
            rotary=self._decoder.rotary(positions),
            next_position=next_position,
            images=tuple(rendered.images),
            media=media,
            is_embedding_row=is_row,
            namespace=self.model_revision,
            hashes=tuple(block_hashes(token_ids, media, self.model_revision)),
        )
        return PlannedRequest(prompt, keys, sampling)

    def sequences(
        self, planned: PlannedRequest, handles: Seq[EmbeddingHandle], sinks: Seq[EventSink]
    ) -> list[Sequence]:
        """One sequence per sink (choice), all on the same prompt.

        Args:
            handles: One per picture of the prompt, in order, held by the caller until the sequences end.

        Raises:
            TransferError: An embedding is not what the plan says; checked here, before admission.
            InvalidRequestError: The JSON schema cannot be used.
        """
        prompt, params = planned.prompt, planned.sampling
        embeddings = self._load(prompt, handles)
        first: Scheduled | None = None
        result = []
        for choice, sink in enumerate(sinks):
            scheduled = Scheduled(next(self._keys), prompt.num_tokens, after=first)
            first = first or scheduled
            grammar = self._grammars.compile(params.json_schema) if params.json_schema is not None else None
            sampler = SequenceSampler(
                params, choice=choice, vocab_size=self._vocab_size, eos_token_ids=self._eos, grammar=grammar
            )
            sampler.observe_prompt(prompt.token_ids)
            output = OutputStream(choice, params, self._renderer.tokenizer, self._eos)
            result.append(Sequence(scheduled, prompt, embeddings, sampler, output, sink))
        return result

    @property
    def _eos(self) -> frozenset[int]:
        return self._renderer.tokenizer.eos_token_ids

    @property
    def _processor_revision(self) -> str:
        return "" if self.preparer is None else self.preparer.revision

    def _make_encoder(self, model: Any, max_embeddings: int) -> Encoder | None:
        if self.family.preparer is None:
            return None
        return Encoder(
            self.family,
            model,
            self._connector,
            model_revision=self.model_revision,
            max_embeddings=max_embeddings,
        )

    def _fit(self, sampling: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        room = self.max_tokens - num_prompt_tokens
        wanted = sampling.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            raise ContextLengthError(
                f"The prompt has {num_prompt_tokens} tokens and {wanted or 1} more are asked for; "
                f"the model's context holds {self.max_tokens}",
                hint="Shorten the prompt, send fewer or smaller pictures, or lower max_tokens.",
                param="/max_tokens" if room >= 1 else None,
            )
        return msgspec.structs.replace(sampling, max_tokens=wanted or room)

    def _load(self, prompt: PlannedPrompt, handles: Seq[EmbeddingHandle]) -> torch.Tensor | None:
        if not prompt.images:
            return None
        width = self._decoder.hidden_size * (1 + self.family.num_deepstack_levels)
        parts = []
        for image, span, handle in zip(prompt.images, prompt.media, handles, strict=True):
            expected = ExpectedEmbedding(
                identity=span.key.partition(":")[0],
                num_embeddings=image.plan.num_embeddings,
                width=width,
                dtype=self.dtype,
                grid_thw=image.plan.grid_thw,
                model_revision=self.model_revision,
                processor_revision=self._processor_revision,
            )
            parts.append(bytes_tensor(self._connector.load(handle, expected), handle.metadata))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
