"""Reading the JSON files of a Hugging Face model directory without transformers."""

import json
from pathlib import Path
from typing import Any

import msgspec

from chiasm.errors import EngineStartError


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None when there is no such file. Raises `EngineStartError` when it holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise EngineStartError(f"Cannot read {path.name}: {error}", hint="download the model again") from error
    if not isinstance(value, dict):
        raise EngineStartError(f"{path.name} holds a {type(value).__name__}, not an object")
    return value


class _AddedToken(msgspec.Struct):
    content: str


class _TokenizerModel(msgspec.Struct):
    vocab: Any = None


class _TokenizerFile(msgspec.Struct):
    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []


class TokenizerFacts(msgspec.Struct, frozen=True):
    """What counting a picture's prompt tokens needs of a tokenizer.

    Attributes:
        added: Tokens cut out of the text before anything else.
        merges_newlines: Whether two newlines between added tokens are one token.
    """

    added: frozenset[str]
    merges_newlines: bool


def tokenizer_facts(directory: Path) -> TokenizerFacts:
    """Read `tokenizer.json`. Raises `EngineStartError` when it is missing or unreadable."""
    try:
        written = msgspec.json.decode((directory / "tokenizer.json").read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineStartError(f"cannot read tokenizer.json of {directory.name}: {error}") from error
    words = written.model.vocab if isinstance(written.model.vocab, dict) else {}
    added = frozenset(token.content for token in written.added_tokens)
    # \u010a is how byte-level vocabularies write a newline
    merges_newlines = "\u010a\u010a" in words or "\n\n" in words or "\n\n" in added
    return TokenizerFacts(added=added, merges_newlines=merges_newlines)
