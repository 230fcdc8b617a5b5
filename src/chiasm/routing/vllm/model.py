"""What the control plane knows of a model that vLLM serves, from the files of its directory."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from chiasm.errors import (
    EngineStartError,
    InvalidRequestError,
    MediaRefusedError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePlan, ImagePreparer
from chiasm.media.prepare.items import plan_of, video_preparer
from chiasm.media.prepare.model_files import read_json
from chiasm.protocol.generation import ChatPrompt, GenerateRequest, ItemPart
from chiasm.protocol.media import MediaItem

_HUGE = 16_384
"""Pixels along the sides of a picture that every processor makes as large as it makes any."""

_FRAMES_INSTEAD = "Send frames of it as pictures, or use the embedded engine"


class _AddedToken(msgspec.Struct):
    content: str
    special: bool = False


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model, as the gateway and all vLLM servers of a fleet have it.

    Attributes:
        name: Its name in the gateway's API.
        config: The model's `config.json`.
        special_tokens: Texts that vLLM's tokenizer takes for special tokens wherever they stand.
        refuses_special_tokens: Whether a user's text may not contain them.
        preparer: How pictures are sized; None where that is not known, which is enough for whole workers, or the
            model has no eyes.
        max_picture_embeddings: The largest picture that servers reserved memory for; None: whatever the model takes.
    """

    name: str
    revision: str
    dtype: str
    config: Mapping[str, Any]
    special_tokens: tuple[str, ...] = ()
    refuses_special_tokens: bool = True
    preparer: ImagePreparer | None = None
    max_picture_embeddings: int | None = None

    @property
    def family(self) -> str:
        """The architecture's name."""
        return str(self.config.get("model_type", "unknown"))

    @property
    def takes_images(self) -> bool:
        """Whether the model has eyes."""
        return self.preparer is not None or isinstance(self.config.get("vision_config"), dict)

    @property
    def processor_revision(self) -> str:
        """What pictures are prepared by; empty for a model without eyes."""
        return self.preparer.revision if self.preparer is not None else ""

    @property
    def text(self) -> Mapping[str, Any]:
        """Configuration of the language model."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def embedding_width(self) -> int:
        """Columns of a picture's embedding: the hidden size, once more for each deepstack level."""
        return int(self.text["hidden_size"]) * (1 + self._num_deepstack)

    @property
    def has_deepstack(self) -> bool:
        """Whether the vision tower hands over more than one level."""
        return self._num_deepstack > 0

    @property
    def _num_deepstack(self) -> int:
        vision = self.config.get("vision_config") or {}
        return len(vision.get("deepstack_visual_indexes") or ())

    @property
    def takes_videos(self) -> bool:
        """Whether the model has a place for videos, as far as is known here."""
        return getattr(self.preparer, "video", None) is not None

    def plan(self, item: MediaItem) -> ImagePlan:
        """What follows from a picture's header, or a video's and its sample.

        Raises:
            MediaRefusedError: The model cannot take one of this size.
            MediaTooLargeError: The servers have no room for it.
            UnsupportedMediaError: A video, which this model does not take.
            EngineStartError: How the model sizes pictures is not known.
        """
        if self.preparer is None:
            if item.kind == "video":
                raise UnsupportedMediaError(f"How '{self.name}' sees videos is not known", hint=_FRAMES_INSTEAD)
            raise EngineStartError(f"How '{self.name}' sizes pictures is not known", hint="Use the topology 'agg'")
        plan = plan_of(self.preparer, item)
        if item.kind == "video":
            self._check_video(item, plan)
        elif self.max_picture_embeddings is not None and plan.num_embeddings > self.max_picture_embeddings:
            raise MediaTooLargeError(
                f"A picture of {item.width}x{item.height} takes {plan.num_embeddings} embeddings; there is room for "
                f"{self.max_picture_embeddings}",
                hint="Send it smaller; the operator's vllm.picture_hint says how large pictures may be",
            )
        return plan

    def _check_video(self, item: MediaItem, plan: ImagePlan) -> None:
        """Servers reserve no more for a video than for the largest picture."""
        if plan.num_embeddings > self._max_embeddings:
            raise MediaTooLargeError(
                f"The frames of the video take {plan.num_embeddings} embeddings; there is room for "
                f"{self._max_embeddings}, as many as the largest picture takes",
                hint="Ask for fewer frames with num_frames or fps in mm_processor_kwargs, or send it smaller",
            )
        assert item.video is not None and self.preparer is not None, "planned above"
        width, height = plan.resized
        if video_preparer(self.preparer).plan(width, height, item.video).resized != plan.resized:
            raise MediaRefusedError(  # the server's own processor would resize once more
                f"Frames of {width}x{height} would not stay as they are in vLLM's processor", hint=_FRAMES_INSTEAD
            )

    @cached_property
    def _max_embeddings(self) -> int:
        assert self.preparer is not None, "there are plans"
        most = self.max_picture_embeddings
        return self.preparer.plan(_HUGE, _HUGE).num_embeddings if most is None else most

    def num_visual_tokens(self, request: GenerateRequest) -> int:
        """Embeddings of all media in a prompt, each as often as it stands there; 0 where that is not known."""
        counts = [0] * len(request.items)
        for index, item in enumerate(request.items):
            with naming_item(index):
                if self.preparer is not None or item.kind == "video":
                    counts[index] = self.plan(item).num_embeddings
        messages = request.prompt.messages if isinstance(request.prompt, ChatPrompt) else ()
        places = [part.item for message in messages for part in message.parts if isinstance(part, ItemPart)]
        return sum(counts[place] for place in places)

    def check_text(self, text: str) -> None:
        """Refuse what vLLM would not take for text. Raises `InvalidRequestError`."""
        if self._special is None or (found := self._special.search(text)) is None:
            return
        raise InvalidRequestError(
            f"The text contains '{found[0]}', which vLLM would take for a special token, not for text",
            hint="Leave it out; where every caller is trusted, the operator may set vllm.special_tokens = 'pass'",
        )

    @cached_property
    def _special(self) -> "re.Pattern[str] | None":
        if not self.special_tokens or not self.refuses_special_tokens:
            return None
        return re.compile("|".join(re.escape(token) for token in sorted(self.special_tokens, key=len, reverse=True)))


def media_uuid(identity: str, cache_salt: str) -> str:
    """Under which name vLLM caches a picture: its content's, and only for callers with the same salt."""
    return hashlib.sha256(f"{identity}:{cache_salt}".encode()).hexdigest() if cache_salt else identity


def special_tokens_of(directory: Path) -> tuple[str, ...]:
    """Special tokens of a model directory's tokenizer; none where it has no `tokenizer.json`.

    Raises:
        EngineStartError: The file cannot be read.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        return ()
    try:
        written = msgspec.json.decode(file.read_bytes(), type=_Tokenizer)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineStartError(f"Cannot read tokenizer.json of {directory.name}: {error}") from error
    return tuple(token.content for token in written.added_tokens if token.special and token.content)


def config_of(directory: Path) -> dict[str, Any]:
    """The model's `config.json`. Raises `EngineStartError` when there is none that can be read."""
    config = read_json(directory / "config.json")
    if config is None:
        raise EngineStartError(f"{directory} has no config.json")
    return config
