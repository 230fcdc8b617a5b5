"""JSON-schema output: which tokens may come next, through llguidance."""

import threading
from collections import OrderedDict

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.errors import InvalidRequestError

_MAX_SCHEMA_CHARS = 131_072
_MAX_CACHED_GRAMMARS = 64
_MAX_REASON_CHARS = 200
# Room for pretty-printing, but a weak model cannot emit spaces for ever.
_WHITESPACE = r"[ \n]{0,16}"
_DOES_NOT_FIT = "satisfy the grammar"  # of a token, in llguidance's words; its other errors are of the schema
_LIMITS = LLParserLimits(max_grammar_size=200_000, max_lexer_states=50_000, verbose_errors=False)


class GrammarState:
    """Where one sequence stands in its schema. Not thread-safe; each choice has its own."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_finished(self) -> bool:
        """The document is complete and only end-of-text may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def mask(self, row: torch.Tensor) -> None:
        """Set the logits [vocab_size] of tokens that may not come next to -inf, in place.

        Raises `InvalidRequestError` when the schema is too complex to follow.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise _refused(self._matcher.get_error())
        is_allowed = np.zeros(row.shape[-1], dtype=np.bool_)
        unpacked = np.unpackbits(bits, bitorder="little")[: row.shape[-1]]
        is_allowed[: len(unpacked)] = unpacked
        row.masked_fill_(torch.from_numpy(~is_allowed).to(row.device), -torch.inf)

    def accept(self, token_id: int) -> bool:
        """Advance by a chosen token; False when the schema does not allow it. End-of-text may repeat at the end.

        Raises `InvalidRequestError` when the schema is too complex to follow.
        """
        is_accepted = bool(self._matcher.consume_token(token_id))
        if not is_accepted and _DOES_NOT_FIT not in self._matcher.get_error():
            raise _refused(self._matcher.get_error())
        return is_accepted

    def copy(self) -> "GrammarState":
        """An independent state at the same place."""
        return GrammarState(self._matcher.deep_copy())


class GrammarCompiler:
    """Compiles schemas for one model; the result of each is kept for the next request. Thread-safe.

    Compiling may take a second for a large schema: call it off the engine's thread.
    """

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, GrammarState] = OrderedDict()

    def compile(self, json_schema: str) -> GrammarState:
        """A fresh state at the start of the schema. Raises `InvalidRequestError` for one that cannot be followed."""
        with self._lock:
            known = self._compiled.get(json_schema)
            if known is not None:
                self._compiled.move_to_end(json_schema)
                return known.copy()
            vocabulary = self._vocabulary = self._vocabulary or self._build_vocabulary()
        compiled = _compile(vocabulary, json_schema)
        with self._lock:
            self._compiled[json_schema] = compiled
            if len(self._compiled) > _MAX_CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        return compiled.copy()

    def _build_vocabulary(self) -> LLTokenizer:
        backend = self._tokenizer.backend
        num_ids = max(self._tokenizer.vocab_size, backend.get_vocab_size())
        return LLTokenizer(backend.to_str(), n_vocab=num_ids, eos_token=sorted(self._tokenizer.eos_token_ids))


def _compile(vocabulary: LLTokenizer, json_schema: str) -> GrammarState:
    if len(json_schema) > _MAX_SCHEMA_CHARS:
        raise _refused(f"{len(json_schema)} characters, the limit is {_MAX_SCHEMA_CHARS}")
    try:
        grammar = LLMatcher.grammar_from_json_schema(json_schema, overrides={"whitespace_pattern": _WHITESPACE})
    except ValueError as error:
        raise _refused(str(error)) from error
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise _refused(matcher.get_error())
    return GrammarState(matcher)


def _refused(reason: str) -> InvalidRequestError:
    lines = reason.strip().splitlines() or ["unknown reason"]
    return InvalidRequestError(
        f"The JSON schema cannot be used: {lines[0][:_MAX_REASON_CHARS]}",
        hint="Simplify the schema or remove the keyword named",
        param="/response_format",
    )
