"""The one place that knows a model's tokenizer: vocabulary size, end-of-text ids, special tokens."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

from chiasm.engines.embedded.prompt.pieces import TokenPieces
from chiasm.errors import EngineStartError
from chiasm.media.prepare.model_files import read_json


class ModelTokenizer:
    """The fast tokenizer of a model directory, read once and shared by all threads.

    Attributes:
        hf: The transformers tokenizer, for its chat template and special-token names. Its `__call__` mutates it: use
            `backend` to encode.
        backend: The Rust tokenizer; `encode` and `decode` may be called from any thread.
        vocab_size: Rows of the model's output layer; every prompt id is below it.
        eos_token_ids: What ends a text: the generation configuration's ids (else the model configuration's) and the
            tokenizer's own.
        pieces: The bytes of each token.
        special_tokens: Id to text of the tokens that `skip_special_tokens` leaves out.
    """

    def __init__(self, directory: Path) -> None:
        """Read `directory` without network. Raises `EngineStartError` when it holds no usable fast tokenizer."""
        self.directory = directory
        self.hf: Any = _load(directory)
        backend = getattr(self.hf, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise EngineStartError(
                f"The model {directory.name} has no fast tokenizer",
                hint="Add a tokenizer.json to the model directory",
            )
        backend.no_truncation()
        backend.no_padding()
        self.backend: Tokenizer = backend
        self.pieces = TokenPieces(backend)
        text_config = _text_config(directory)
        self.vocab_size: int = getattr(text_config, "vocab_size", None) or backend.get_vocab_size()
        self.eos_token_ids = _eos_token_ids(directory, text_config, self.hf.eos_token_id)
        self.special_tokens: dict[int, str] = {
            token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        }


def _load(directory: Path) -> Any:
    if not directory.is_dir():
        raise EngineStartError(f"No model directory {directory.name}", hint="Pass the path of a local model directory")
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever its kind: tokenizers raises bare Exception for a broken file
        raise EngineStartError(
            f"Cannot read the tokenizer of {directory.name}: {error}",
            hint="Check tokenizer.json and tokenizer_config.json",
        ) from error


def _text_config(directory: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True).get_text_config()
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise EngineStartError(f"Cannot read config.json of {directory.name}: {error}") from error


def _eos_token_ids(directory: Path, text_config: Any, tokenizer_eos: int | None) -> frozenset[int]:
    stated = (read_json(directory / "generation_config.json") or {}).get("eos_token_id")
    if stated is None:
        stated = getattr(text_config, "eos_token_id", None)
    ids = [stated] if isinstance(stated, int) else list(stated or ())
    return frozenset(ids if tokenizer_eos is None else [*ids, tokenizer_eos])
