"""The language model's stages, prefill and decode: planned prompts and checked tensors in, running sequences out."""

import itertools
from collections.abc import Collection
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch

from chiasm.adapters.sizes import BaseModel, last_parts
from chiasm.connectors.base import EmbeddingConnector, ExpectedEmbedding
from chiasm.engines.embedded.adapters.store import AdapterStore
from chiasm.engines.embedded.buffers import bytes_tensor
from chiasm.engines.embedded.core import EngineCore
from chiasm.engines.embedded.decoder.base import Decoder
from chiasm.engines.embedded.decoder.registry import make_decoder
from chiasm.engines.embedded.families.base import Family, LoadedModel
from chiasm.engines.embedded.output.stream import OutputStream
from chiasm.engines.embedded.planner import PlannedRequest, Planner, processor_revision
from chiasm.engines.embedded.prompt.render import PromptRenderer
from chiasm.engines.embedded.sampling.grammar import GrammarCompiler
from chiasm.engines.embedded.sampling.sampler import SequenceSampler
from chiasm.engines.embedded.sequence import EventSink, PlannedPrompt, PromptTensors, Sequence
from chiasm.media.prepare.base import ImagePlan
from chiasm.protocol.media import EmbeddingHandle
from chiasm.scheduling.scheduler import Sequence as Scheduled
from chiasm.scheduling.step_budget import StepBudget
from chiasm.settings import AdapterSettings, EngineSettings


class LanguageStages:
    """Prefill and decode of one model. Thread-safe but for `core`, which belongs to the loop's thread."""

    def __init__(
        self,
        settings: EngineSettings,
        directory: Path,
        family: Family,
        model: LoadedModel,
        connector: EmbeddingConnector,
        revision: str,
        adapters: AdapterSettings,
    ) -> None:
        """Arrange the weights of `model`, whose layers are not needed afterwards.

        Args:
            settings: Of the engine; `threads` filled in.
            directory: Of the model.
            family: Of the model.
            model: Loaded weights.
            connector: Where held embeddings are read.
            revision: Of the model.
            adapters: Which may be loaded.

        Raises:
            EngineStartError: The tokenizer is unusable, or the decoder asked for cannot be used.
        """
        self._connector = connector
        self._renderer = PromptRenderer(directory, family)
        self._grammars = GrammarCompiler(self._renderer.tokenizer)
        self._dtype = settings.dtype
        self._model_revision = revision
        self._processor_revision = processor_revision(family)
        self._vocab_size = len(model.lm_head)
        self._keys = itertools.count()
        self.max_tokens = context_tokens(settings, model)
        self.decoder = make_decoder(
            model,
            family.frequency_axes,
            kind=settings.decoder,
            pack_weights=settings.pack_weights,
            threads=settings.threads,
        )
        base = _base_model(self.decoder, model, {directory.name, directory.resolve().name, *adapters.base_names})
        self.adapters = AdapterStore(self.decoder.arrange, base, adapters)
        self.core = _core(settings, self.decoder, self.max_tokens)
        self.embedding_width = self.decoder.hidden_size * (1 + family.num_deepstack_levels)
        self.planner = Planner(
            family, self._renderer, self.decoder.rotary, model_revision=revision, max_tokens=self.max_tokens
        )

    def expected_embedding(self, identity: str, plan: ImagePlan) -> ExpectedEmbedding:
        """What the embedding of a picture must be, whoever made it."""
        return ExpectedEmbedding(
            identity=identity,
            num_embeddings=plan.num_embeddings,
            width=self.embedding_width,
            dtype=self._dtype,
            grid_thw=plan.grid_thw,
            kind=plan.kind,
            second_per_grid_s=plan.second_per_grid_s,
            model_revision=self._model_revision,
            processor_revision=self._processor_revision,
        )

    def embedding(self, prompt: PlannedPrompt, image: int, handle: EmbeddingHandle) -> torch.Tensor:
        """Rows of one of the prompt's pictures, of which a handle is held.

        Raises:
            TransferError: The embedding is not what the plan says.
        """
        expected = self.expected_embedding(prompt.media[image].key.partition(":")[0], prompt.images[image].plan)
        return bytes_tensor(self._connector.load(handle, expected), handle.metadata)

    def sequences(
        self, planned: PlannedRequest, tensors: PromptTensors, num_missing_tokens: int, sinks: Seq[EventSink]
    ) -> list[Sequence]:
        """One sequence per sink (choice), all on the same prompt and tensors, of which the end may be missing.

        Raises:
            InvalidRequestError: The JSON schema cannot be used.
        """
        prompt, params = planned.prompt, planned.sampling
        tokenizer = self._renderer.tokenizer
        first: Scheduled | None = None
        result = []
        for choice, sink in enumerate(sinks):
            scheduled = Scheduled(
                next(self._keys),
                prompt.num_tokens,
                after=first,
                has_media=bool(prompt.images),
                priority=params.priority,
                num_missing_tokens=num_missing_tokens,
            )
            first = first or scheduled
            grammar = self._grammars.compile(params.json_schema) if params.json_schema is not None else None
            sampler = SequenceSampler(
                params,
                choice=choice,
                vocab_size=self._vocab_size,
                eos_token_ids=tokenizer.eos_token_ids,
                grammar=grammar,
            )
            sampler.observe_prompt(prompt.token_ids)
            output = OutputStream(choice, params, tokenizer, tokenizer.eos_token_ids)
            result.append(Sequence(scheduled, prompt, tensors, sampler, output, sink))
        return result


def _base_model(decoder: Decoder, model: LoadedModel, names: Collection[str]) -> BaseModel:
    config: Any = model.text.config
    shape = decoder.shape
    return BaseModel(
        names=last_parts({*names, getattr(config, "_name_or_path", "") or ""}),
        num_layers=decoder.num_layers,
        hidden=decoder.hidden_size,
        attention=shape.heads * shape.head_dim,
        key_value=shape.kv_heads * shape.head_dim,
        intermediate=int(config.intermediate_size),
    )


def _core(settings: EngineSettings, decoder: Decoder, max_tokens: int) -> EngineCore:
    return EngineCore(
        decoder,
        num_slots=settings.max_running,
        max_tokens=max_tokens,
        max_step_tokens=settings.max_step_tokens,
        max_waiting=settings.max_waiting,
        prefix_cache_bytes=settings.prefix_cache_bytes,
        budget=StepBudget(settings.max_media_step_s),
    )


def context_tokens(settings: EngineSettings, model: LoadedModel) -> int:
    """The longest prompt plus output."""
    config: Any = model.text.config
    return min(settings.max_model_tokens, int(config.max_position_embeddings))
