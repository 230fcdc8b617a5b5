"""Ranks pictures for a text, all of them in one call of the engine."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from chiasm.errors import MediaError, UnsupportedModelError
from chiasm.media.item_errors import renumbered
from chiasm.media.reference import MediaReference
from chiasm.pooling.io.base import IOProcessor, ProcessorWork, RequestContext, checked
from chiasm.pooling.ranking import ranked, reported
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import MediaPairInput, PoolingInfo, PoolOutput, PoolParams


class ImageRankData(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`data` of a request. A candidate that is only a text is a picture's URL or data URL.

    `on_error` says what a candidate whose picture cannot be used does: it is reported, or refuses the request.
    """

    query: Annotated[str, Meta(min_length=1)]
    candidates: Annotated[list["str | PictureCandidate"], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=0)] = 0
    on_error: Literal["report", "refuse"] = "report"


class PictureCandidate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A picture's URL or data URL, what is said of it, and the caller's own id."""

    image: str
    text: str = ""
    id: str | int | None = None


class _State(NamedTuple):
    """`places[i]` is the candidate that input i stands for; the others have `errors`. `params` are all pictures'."""

    ids: list[str | int | None]
    params: list[str]
    top_n: int
    refuses: bool
    places: list[int]
    errors: dict[int, MediaError]


class ImageRanker(IOProcessor):
    """`{"query", "candidates"}` to `{"results": [{"index", "id", "score"}], "errors": [...]}`, best first."""

    name: ClassVar[str] = "image_ranker"
    passes_urls_on: ClassVar[bool] = True

    def __init__(self, info: PoolingInfo) -> None:
        super().__init__(info)
        if not info.takes_images or "score" not in info.tasks:
            raise UnsupportedModelError("The processor 'image_ranker' needs a model that scores pictures for a text")

    def parse(self, data: object) -> ImageRankData:
        """See `IOProcessor`."""
        return checked(data, ImageRankData)

    def merge_params(self, params: PoolParams) -> PoolParams:
        """Texts that are too long are cut, unless the caller has said how; a broken picture harms no other."""
        truncate = "end" if params.truncate == "refuse" else params.truncate
        return msgspec.structs.replace(params, truncate=truncate, reports_failures=True)

    def media(self, request: ImageRankData) -> Sequence[MediaReference]:
        """See `IOProcessor`."""
        return [
            MediaReference("image", one, f"/data/candidates/{index}")
            if isinstance(one, str)
            else MediaReference("image", one.image, f"/data/candidates/{index}/image")
            for index, one in enumerate(request.candidates)
        ]

    def pre(self, request: ImageRankData, context: RequestContext) -> ProcessorWork:
        """See `IOProcessor`. Raises `MediaError` when no candidate is left, or one fails that may not."""
        ids = [None if isinstance(one, str) else one.id for one in request.candidates]
        errors = {index: one for index, one in enumerate(context.media) if isinstance(one, MediaError)}
        refuses = request.on_error == "refuse"
        _check(errors, len(ids), refuses=refuses)
        inputs, places = [], []
        for index, (candidate, item) in enumerate(zip(request.candidates, context.media, strict=True)):
            if isinstance(item, MediaItem):
                text = "" if isinstance(candidate, str) else candidate.text
                inputs.append(MediaPairInput(request.query, item, text))
                places.append(index)
        params = [reference.param for reference in self.media(request)]
        context.state = _State(ids, params, request.top_n, refuses, places, errors)
        return ProcessorWork("score", tuple(inputs))

    def post(self, outputs: Sequence[PoolOutput], context: RequestContext) -> dict[str, Any]:
        """See `IOProcessor`. Raises as `pre` does: some pictures turn out to be broken only when they are decoded."""
        state: _State = context.state
        scored: dict[int, float] = {}
        for place, output in zip(state.places, outputs, strict=True):
            if output.error is None:
                scored[place] = float(output.values[0])
            else:
                state.errors[place] = renumbered(output.error, place, state.params[place])
        _check(state.errors, len(state.ids), refuses=state.refuses)
        places = list(scored)
        order = [places[index] for index in ranked(list(scored.values()), state.top_n or None)]
        return {
            "results": [{"index": i, "id": state.ids[i], "score": reported(scored[i])} for i in order],
            "errors": [_failure(index, state.ids[index], error) for index, error in sorted(state.errors.items())],
        }


def _check(errors: dict[int, MediaError], num_candidates: int, *, refuses: bool) -> None:
    if errors and (refuses or len(errors) == num_candidates):
        raise errors[min(errors)]


def _failure(index: int, own_id: str | int | None, error: MediaError) -> dict[str, Any]:
    return {"index": index, "id": own_id, "code": error.code, "message": error.message}
