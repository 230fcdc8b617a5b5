"""Requests to prompts as the decoder sees them: tokens, positions, hashes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from chiasm.cache.block_hash import MediaSpan, block_hashes
from chiasm.connectors.base import embedding_key
from chiasm.engines.embedded.decoder.rotary import Rotary
from chiasm.engines.embedded.families.base import Family, PlacedImage
from chiasm.engines.embedded.prompt.render import PromptRenderer
from chiasm.engines.embedded.sequence import PlannedPrompt
from chiasm.errors import ContextLengthError
from chiasm.media.prepare.base import ImagePlan
from chiasm.protocol.generation import GenerateRequest, SamplingParams


@dataclass(frozen=True)
class PlannedRequest:
    """A request that fits: its prompt, and sampling parameters with `max_tokens` filled in.

    `items` has the position in the request of each picture in the prompt, in the prompt's order.
    """

    prompt: PlannedPrompt
    items: tuple[int, ...]
    sampling: SamplingParams


class Planner:
    """Plans prompts of one model. Thread-safe."""

    def __init__(
        self,
        family: Family,
        renderer: PromptRenderer,
        rotary: Callable[[NDArray[np.int64]], Rotary],
        *,
        model_revision: str,
        max_tokens: int,
    ) -> None:
        self._family = family
        self._renderer = renderer
        self._rotary = rotary
        self._model_revision = model_revision
        self._processor_revision = processor_revision(family)
        self._max_tokens = max_tokens

    def plan(self, request: GenerateRequest, plans: Sequence[ImagePlan]) -> PlannedRequest:
        """Turn a request into tokens, positions and hashes. `plans` has one entry per item of the request.

        Raises:
            ContextLengthError: Prompt and asked-for output do not fit.
            RequestError: The prompt cannot be rendered.
        """
        rendered = self._renderer.render(request.prompt, plans)
        token_ids = np.asarray(rendered.token_ids, dtype=np.int64)
        sampling = self._fit(request.sampling, len(token_ids))
        positions, next_position = self._family.positions(len(token_ids), rendered.images)
        media = tuple(
            MediaSpan(self._key(request.items[item].identity, request.cache_salt), image.offset, image.num_tokens)
            for item, image in zip(rendered.items, rendered.images, strict=True)
        )
        revision = self._model_revision + (f"+{request.adapter.revision}" if request.adapter is not None else "")
        namespace = f"{revision}:{request.cache_salt}" if request.cache_salt else revision
        prompt = PlannedPrompt(
            token_ids=token_ids,
            rotary=self._rotary(positions),
            next_position=next_position,
            images=tuple(rendered.images),
            media=media,
            is_embedding_row=self._embedding_rows(token_ids, rendered.images),
            model_revision=revision,
            cache_salt=request.cache_salt,
            namespace=namespace,
            hashes=tuple(block_hashes(token_ids, media, namespace)),
        )
        return PlannedRequest(prompt, tuple(rendered.items), sampling)

    def _key(self, identity: str, cache_salt: str) -> str:
        return embedding_key(identity, self._model_revision, self._processor_revision, cache_salt)

    def _embedding_rows(self, token_ids: NDArray[np.int64], images: Sequence[PlacedImage]) -> NDArray[np.bool_]:
        is_row = np.zeros(len(token_ids), bool)
        for image in images:
            place = slice(image.offset, image.offset + image.num_tokens)
            is_video = image.plan.kind == "video"
            row_id = self._family.video_token_id if is_video else self._family.image_token_id
            is_row[place] = token_ids[place] == row_id
        return is_row

    def _fit(self, sampling: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        room = self._max_tokens - num_prompt_tokens
        wanted = sampling.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            raise ContextLengthError(
                f"The prompt has {num_prompt_tokens} tokens and {wanted or 1} more are asked for; "
                f"the model's context holds {self._max_tokens}",
                hint="Shorten the prompt, send fewer or smaller pictures, or lower max_tokens.",
                param="/max_tokens" if room >= 1 else None,
            )
        return msgspec.structs.replace(sampling, max_tokens=wanted or room)


def processor_revision(family: Family) -> str:
    """What identifies the family's picture preparation; empty for a text-only model."""
    return "" if family.preparer is None else family.preparer.revision
