import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from chiasm.engines.embedded.output.detokenizer import WindowDetokenizer, detokenizer_for
from chiasm.engines.embedded.prompt.pieces import PieceStyle, TokenPieces
from tests.unit.engines.embedded.output.made_tokenizers import byte_fallback, byte_level, word_piece

BYTE_LEVEL = byte_level()
LLAMA = byte_fallback(strips_space=True)
GEMMA = byte_fallback(strips_space=False)
WORD_PIECE = word_piece()
PIECES = {id(t): TokenPieces(t) for t in (BYTE_LEVEL, LLAMA, GEMMA, WORD_PIECE)}

steady = settings(deadline=None)  # the cores are shared


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def deltas(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> list[str]:
    skipped = special_ids(tokenizer) if skip else set()
    detokenizer = detokenizer_for(tokenizer, PIECES[id(tokenizer)], skipped)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    # One id beyond the vocabulary: models have padded output layers.
    return st.lists(st.integers(0, tokenizer.get_vocab_size(with_added_tokens=True)), max_size=40)


@pytest.mark.parametrize(
    ("tokenizer", "style", "strips"),
    [
        (BYTE_LEVEL, PieceStyle.BYTE_LEVEL, False),
        (LLAMA, PieceStyle.BYTE_FALLBACK, True),
        (GEMMA, PieceStyle.BYTE_FALLBACK, False),
        (WORD_PIECE, PieceStyle.CONTEXT, False),
    ],
)
def test_style_follows_the_decoder(tokenizer, style, strips):
    pieces = TokenPieces(tokenizer)
    assert (pieces.style, pieces.strips_space) == (style, strips)


@steady
@given(ids_of(BYTE_LEVEL), st.booleans())
def test_byte_level_stream_equals_decode_for_any_ids(ids, skip):
    assert "".join(deltas(BYTE_LEVEL, ids, skip=skip)) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@steady
@given(st.text(max_size=60))
def test_byte_level_stream_sends_only_whole_characters(text):
    alphabet = {bytes(PIECES[id(BYTE_LEVEL)][i]): i for i in range(256)}
    ids = [alphabet[bytes([value])] for value in text.encode("utf-8", "ignore")]
    parts = deltas(BYTE_LEVEL, ids, skip=False)
    assert "".join(parts) == text
    assert all(len(part) <= 1 for part in parts)


def is_utf8(run: bytes) -> bool:
    try:
        run.decode()
    except UnicodeDecodeError:
        return False
    return True


def breaks_after_a_character(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> bool:
    """The one documented exception: a byte run that starts with a whole character and is not UTF-8 as a whole."""
    pieces, skipped = PIECES[id(tokenizer)], special_ids(tokenizer) if skip else set()
    heard = [i for i in ids if i not in skipped and pieces[i]]
    groups = itertools.groupby(heard, key=lambda token_id: token_id in pieces.byte_values)
    runs = [b"".join(pieces[i] for i in group) for is_bytes, group in groups if is_bytes]
    return any(not is_utf8(run) and any(is_utf8(run[:size]) for size in range(1, 5)) for run in runs)


@pytest.mark.parametrize("tokenizer", [LLAMA, GEMMA], ids=["llama", "gemma"])
@steady
@given(data=st.data(), skip=st.booleans())
def test_byte_fallback_stream_equals_decode(tokenizer, data, skip):
    ids = data.draw(ids_of(tokenizer))
    if not breaks_after_a_character(tokenizer, ids, skip=skip):
        assert "".join(deltas(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("tokenizer", [LLAMA, GEMMA], ids=["llama", "gemma"])
@steady
@given(text=st.text(st.characters(codec="utf-8"), max_size=30))
def test_byte_fallback_stream_of_text_equals_decode(tokenizer, text):
    ids = tokenizer.encode(text.replace(" ", "▁"), add_special_tokens=False).ids
    parts = deltas(tokenizer, ids, skip=True)
    assert "".join(parts) == tokenizer.decode(ids, skip_special_tokens=True)
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


def test_byte_fallback_sends_a_character_as_soon_as_it_is_whole():
    run = [LLAMA.token_to_id(f"<0x{value:02X}>") for value in "한글".encode()]
    assert deltas(LLAMA, run, skip=True) == ["", "", "한", "", "", "글", ""]


def test_byte_fallback_that_breaks_after_a_character_keeps_the_character():
    run = [LLAMA.token_to_id(f"<0x{value:02X}>") for value in "한".encode() + b"\x80"]
    assert "".join(deltas(LLAMA, run, skip=True)) == "한\ufffd"


def test_incomplete_end_becomes_replacement_characters():
    ids = [BYTE_LEVEL.token_to_id(character) for character in ("a", "ð", "Ł")]  # bytes 61 F0 9F
    assert deltas(BYTE_LEVEL, ids, skip=True) == ["a", "", "", "\ufffd"]
    assert BYTE_LEVEL.decode(ids) == "a\ufffd"


def test_llama_strips_one_leading_space_only():
    ids = [LLAMA.token_to_id("<s>"), LLAMA.token_to_id("▁▁"), LLAMA.token_to_id("▁Hello"), LLAMA.token_to_id("▁world")]
    assert "".join(deltas(LLAMA, ids, skip=True)) == "  Hello world" == LLAMA.decode(ids)


@steady
@given(ids_of(WORD_PIECE), st.booleans())
def test_window_equals_decode_for_word_pieces(ids, skip):
    known = [i for i in ids if WORD_PIECE.id_to_token(i) != ","]
    assert "".join(deltas(WORD_PIECE, known, skip=skip)) == WORD_PIECE.decode(known, skip_special_tokens=skip)


@steady
@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_window_never_splits_a_character(text):
    pieces = PIECES[id(BYTE_LEVEL)]
    alphabet = {pieces[i]: i for i in range(256)}
    ids = [alphabet[bytes([value])] for value in text.encode()]
    detokenizer = WindowDetokenizer(BYTE_LEVEL, set())
    parts = [*map(detokenizer.push, ids), detokenizer.flush()]
    assert "".join(parts) == text


def test_window_stays_small_when_nothing_is_ever_whole():
    detokenizer = WindowDetokenizer(BYTE_LEVEL, set())
    stray = BYTE_LEVEL.token_to_id("Ģ")  # byte 80
    parts = [detokenizer.push(stray) for _ in range(100)]
    assert len(detokenizer._window) <= 2 * WindowDetokenizer._MAX_PENDING_TOKENS
    assert "".join(parts) + detokenizer.flush() == "\ufffd" * 100
