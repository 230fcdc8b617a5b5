"""Small tokenizers of every decoder kind."""

from tokenizers import AddedToken, Tokenizer, decoders, models

_BYTES = [f"<0x{value:02X}>" for value in range(256)]
_WORDS = ["▁", "▁Hello", "▁world", "a", "b", "e", "!", "한", "국", "▁한국", "😀", "é", "▁▁", "\n"]


def byte_fallback(*, strips_space: bool) -> Tokenizer:
    """A sentencepiece model's tokenizer: Llama strips the leading space, Gemma does not."""
    vocabulary = {token: at for at, token in enumerate(["<unk>", "<s>", "</s>", *_BYTES, *_WORDS])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips_space else steps)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def word_piece() -> Tokenizer:
    """A BERT-like tokenizer, whose text depends on neighbours."""
    words = ["[UNK]", "[CLS]", "[SEP]", "play", "##ing", "##ed", "the", "game", ",", "한", "##국"]
    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    return tokenizer


def byte_level() -> Tokenizer:
    """All single bytes, and added tokens inside and outside the byte alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = [chr(value) for value in printable] + [chr(0x100 + at) for at in range(256 - len(printable))]
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(alphabet)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<｜끝｜>"])
    tokenizer.add_tokens([AddedToken("two words"), AddedToken("도구")])
    return tokenizer
