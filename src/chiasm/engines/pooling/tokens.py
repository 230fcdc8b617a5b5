"""Texts, pairs and token ids to what the model reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from chiasm.engines.pooling.batch import Tokens
from chiasm.engines.pooling.dual import Feature, RankedPicture
from chiasm.errors import ContextLengthError, EngineStartError, InvalidRequestError
from chiasm.pooling.model_files import PoolingModel
from chiasm.pooling.truncation import pair_lengths
from chiasm.protocol.pooling.work import (
    MediaPairInput,
    PairInput,
    PoolInput,
    PoolParams,
    TextInput,
    TokenPlace,
    TokensInput,
)

Content = Tokens | Feature | RankedPicture
"""One input: tokens, what was made of a picture, or both."""


@dataclass(frozen=True)
class Encoded:
    """One input, tokenized."""

    content: Content
    is_truncated: bool
    places: tuple[TokenPlace, ...] = ()


@dataclass(frozen=True)
class PairTemplate:
    """How a yes/no model is asked. Texts of callers are never read as special tokens; the template's own are."""

    before: str
    body: str
    after: str


class InputTokenizer:
    """Thread-safe: a call changes nothing of it."""

    def __init__(
        self, directory: Path, model: PoolingModel, *, max_tokens: int, template: PairTemplate | None = None
    ) -> None:
        """Read `tokenizer.json`. Raises `EngineStartError`."""
        self._model = model
        self._max_tokens = max_tokens
        self._template = template
        self._tokenizer = _read(directory)
        self._has_more_words = self.vocabulary_size < self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._marker = self._tokenizer.encode(model.marker_token, add_special_tokens=False)
        self._pad_id = self.token_id(model.pad_token) if model.pad_token else None
        if model.marker_token:
            self.token_id(model.marker_token)
        self._before: list[int] = []
        self._after: list[int] = []
        if template is not None:
            self._before = self._tokenizer.encode(template.before, add_special_tokens=False).ids
            self._after = self._tokenizer.encode(template.after, add_special_tokens=False).ids
        if template is not None or model.marker_token:
            self._tokenizer.encode_special_tokens = True  # from here on, what looks like one is text

    @property
    def vocabulary_size(self) -> int:
        """Token ids are smaller."""
        known = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        return min(known, self._model.vocabulary_size or known)

    def token_id(self, text: str) -> int:
        """The one token that a text is. Raises `EngineStartError` when it is several, or none."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) != 1:
            raise EngineStartError(f"{text!r} is {len(ids)} tokens of this model", hint="Name a text that is one token")
        return int(ids[0])

    def encode(self, inputs: Sequence[PoolInput], params: PoolParams) -> list[Encoded]:
        """Tokenize inputs, each distinct text once.

        Raises:
            ContextLengthError: One is too long, and may not be cut. `item` is its position.
            InvalidRequestError: One has no tokens, or some that the model does not know.
        """
        texts = list(dict.fromkeys(text for one in inputs for text in self._texts(one)))
        found = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        by_text = dict(zip(texts, found, strict=True))
        return [self._encoded(one, item, by_text, params) for item, one in enumerate(inputs)]

    def _texts(self, one: PoolInput) -> tuple[str, ...]:
        if isinstance(one, TextInput):
            return (self._prefixed(one),)
        if isinstance(one, MediaPairInput):
            assert isinstance(one.first, str), "the worker has looked"
            return self._cased(one.first), self._cased(one.text)
        if isinstance(one, PairInput):
            if self._template is not None:
                return (self._template.body.format(query=one.first, document=one.second),)
            return self._cased(one.first), self._cased(one.second)
        return ()

    def _prefixed(self, one: TextInput) -> str:
        prefix = self._model.prompts.get(one.prompt or self._model.default_prompt or "", "")
        return self._cased(prefix + one.text)

    def _cased(self, text: str) -> str:
        return text.lower() if self._model.is_lower_case else text

    def _encoded(self, one: PoolInput, item: int, found: dict[str, Encoding], params: PoolParams) -> Encoded:
        most = min(self._max_tokens, params.max_tokens or self._max_tokens)
        if isinstance(one, TokensInput):
            return self._from_ids(one, item, most, params)
        encodings = [found[text] for text in self._texts(one)]
        if self._template is not None:
            return self._known(self._asked(encodings[0], item, most, params), item)
        return self._known(self._joined(encodings, item, most, params), item)

    def _known(self, encoded: Encoded, item: int) -> Encoded:
        """Some tokenizers have words that their model has no weights for."""
        content = encoded.content
        if self._has_more_words and isinstance(content, Tokens) and max(content.ids) >= self.vocabulary_size:
            raise InvalidRequestError(
                f"A token of this text is not below the {self.vocabulary_size} that the model has weights for",
                hint="Leave out added tokens of the tokenizer, or repair the model's folder",
                item=item,
            )
        return encoded

    def _from_ids(self, one: TokensInput, item: int, most: int, params: PoolParams) -> Encoded:
        if any(number >= self.vocabulary_size for number in one.token_ids):
            raise InvalidRequestError(f"A token id is not below {self.vocabulary_size}", item=item)
        ids = one.token_ids
        if len(ids) > most:
            _check_may_cut(len(ids), most, item, params)
            ids = ids[:most] if params.truncate == "end" else ids[len(ids) - most :]
        return Encoded(self._filled(Tokens(_not_empty(ids, item))), is_truncated=len(ids) < len(one.token_ids))

    def _asked(self, body: Encoding, item: int, most: int, params: PoolParams) -> Encoded:
        room = _room(most, len(self._before) + len(self._after), item)
        ids = body.ids
        if params.max_document_tokens is not None:
            raise InvalidRequestError("A document inside a question cannot be cut by itself", item=item)
        if len(ids) > room:
            _check_may_cut(len(ids) + most - room, most, item, params)
            ids = ids[:room]
        tokens = Tokens((*self._before, *ids, *self._after))
        return Encoded(tokens, is_truncated=len(ids) < len(body.ids))

    def _joined(self, encodings: list[Encoding], item: int, most: int, params: PoolParams) -> Encoded:
        """Cut texts, then let the tokenizer's own rule put special tokens around them."""
        is_pair = len(encodings) == 2
        num_special = self._tokenizer.num_special_tokens_to_add(is_pair) if params.add_special_tokens else 0
        num_special += len(self._marker.ids)
        lengths = [len(one.ids) for one in encodings]
        kept = self._kept(lengths, most, num_special, item, params)
        texts = [_shortened(one, n, params) for one, n in zip(encodings, kept, strict=True)]
        if self._marker.ids:
            texts[-1] = Encoding.merge([self._marker, texts[-1]], growing_offsets=False)
        whole = self._tokenizer.post_process(
            texts[0], texts[1] if is_pair else None, add_special_tokens=params.add_special_tokens
        )
        tokens = Tokens(_not_empty(tuple(whole.ids), item), tuple(whole.type_ids) if is_pair else None)
        places = _places(whole, kept) if params.with_offsets else ()
        return Encoded(self._filled(tokens), is_truncated=kept != lengths, places=places)

    def _filled(self, tokens: Tokens) -> Tokens:
        """With the padding that is part of what a model reads: SigLIP's was trained with it and looks at it."""
        if self._pad_id is None:
            return tokens
        return Tokens(tokens.ids + (self._pad_id,) * (self._max_tokens - len(tokens.ids)))

    def _kept(self, lengths: list[int], most: int, num_special: int, item: int, params: PoolParams) -> list[int]:
        room = _room(most, num_special, item)
        kept = list(lengths)
        if params.max_document_tokens is not None:
            kept[-1] = min(kept[-1], params.max_document_tokens)
        if sum(kept) > room:
            _check_may_cut(sum(kept) + num_special, most, item, params)
            kept = [room] if len(kept) == 1 else list(pair_lengths(kept[0], kept[1], room))
        return kept


def _read(directory: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:
        raise EngineStartError(
            f"Cannot read tokenizer.json of {directory.name}: {error}",
            hint="Save the model with a fast tokenizer: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _room(most: int, num_special: int, item: int) -> int:
    """Tokens left for texts. Raises `InvalidRequestError` when there are not even enough for what is always added."""
    if most < num_special:
        raise InvalidRequestError(
            f"{most} tokens are fewer than the {num_special} that are added to every input",
            hint="Raise truncate_prompt_tokens (or max_tokens)",
            item=item,
        )
    return most - num_special


def _check_may_cut(num_tokens: int, most: int, item: int, params: PoolParams) -> None:
    if params.truncate == "refuse":
        raise ContextLengthError(
            f"The input has {num_tokens} tokens, and {most} are the most",
            hint="Send a shorter text, or let it be cut with truncate_prompt_tokens (-1: to what the model takes)",
            item=item,
        )


def _shortened(encoding: Encoding, num_tokens: int, params: PoolParams) -> Encoding:
    if num_tokens < len(encoding.ids):
        encoding = _copy(encoding)
        encoding.truncate(num_tokens, direction="left" if params.truncate == "start" else "right")
    return encoding


def _copy(encoding: Encoding) -> Encoding:
    """Texts are shared by the inputs of a request, and cutting changes an encoding in place."""
    return Encoding.merge([encoding], growing_offsets=False)


def _places(encoding: Encoding, lengths: Sequence[int]) -> tuple[TokenPlace, ...]:
    """Where tokens stand: texts lie one after the other, with special tokens around them.

    `Encoding.sequence_ids` would say so too, but loses the first text when texts are joined after they were encoded.
    """
    texts = iter([text for text, length in enumerate(lengths) for _ in range(length)])
    return tuple(
        TokenPlace(-1 if is_special else next(texts), start, end)
        for is_special, (start, end) in zip(encoding.special_tokens_mask, encoding.offsets, strict=True)
    )


def _not_empty(ids: tuple[int, ...], item: int) -> tuple[int, ...]:
    if not ids:
        raise InvalidRequestError("The input has no tokens", hint="Send a text that is not empty", item=item)
    return ids
