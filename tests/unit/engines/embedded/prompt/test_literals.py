from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from chiasm.engines.embedded.prompt.literals import LiteralGuard
from tests.unit.engines.embedded.output.made_tokenizers import word_piece
from tests.unit.engines.embedded.prompt.directories import PACKAGED

steady = settings(deadline=None, max_examples=50)  # the cores are shared


def sentencepiece() -> Tokenizer:
    """Llama-like: spaces become "▁", special tokens live in the model's vocabulary."""
    words = ["<unk>", "<s>", "</s>", "<image>", *(f"<0x{value:02X}>" for value in range(256)), "▁", "a", "b", "ab"]
    tokenizer = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, [("a", "b")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<image>"])
    return tokenizer


def unigram() -> Tokenizer:
    """T5-like: a piece of the vocabulary itself spells the special token."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("▁", -2.0), *((c, -3.0) for c in "ab<>/s|im_end"), ("<image>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(list(dict(pieces).items()), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<image>"])
    return tokenizer


def beyond_the_model() -> Tokenizer:
    """Special tokens that the model's own vocabulary does not have, one of them swallowing spaces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), "</s>", "</s><image>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


MADE = {
    "packaged": Tokenizer.from_file(str(PACKAGED / "tokenizer.json")),
    "sentencepiece": sentencepiece(),
    "unigram": unigram(),
    "beyond": beyond_the_model(),
}
GUARDED = {
    name: {i: t.content for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
    for name, tokenizer in MADE.items()
}
GUARDS = {name: LiteralGuard(tokenizer, GUARDED[name]) for name, tokenizer in MADE.items()}
every = pytest.mark.parametrize("name", MADE)


def fragments(name: str) -> st.SearchStrategy[list[str]]:
    """Texts made of whole special tokens, parts of them, and letters."""
    literals = list(GUARDED[name].values())
    cuts = [text[a:b] for text in literals for a in range(len(text)) for b in range(a + 1, len(text) + 1)]
    part = st.one_of(st.sampled_from(literals), st.sampled_from(cuts), st.sampled_from(["a", "b", " ", "\n", ""]))
    return st.lists(st.lists(part, max_size=5).map("".join), min_size=1, max_size=5)


def special(name: str, ids: list[int]) -> list[str]:
    """Special tokens in the output, but for those that stand for what a small vocabulary cannot spell."""
    return [GUARDED[name][i] for i in ids if GUARDED[name].get(i, "<unk>") not in ("<unk>", "<pad>")]


@every
@steady
@given(data=st.data())
def test_text_never_becomes_a_special_token_and_the_templates_always_do(name, data):
    guard, texts = GUARDS[name], data.draw(fragments(name))
    ids = guard.encode("a</s>" + "</s>".join(map(guard.hide, texts)) + "<|im_end|>")
    written = ["</s>"] * len(texts) if name != "packaged" else ["<|im_end|>"]
    assert special(name, ids) == written


@every
@steady
@given(data=st.data())
def test_hidden_text_comes_back_when_decoded(name, data):
    guard, texts = GUARDS[name], data.draw(fragments(name))
    ids = guard.encode("".join(map(guard.hide, texts)))
    if not any(GUARDED[name].get(i) in ("<unk>", "<pad>") for i in ids):
        assert MADE[name].decode(ids, skip_special_tokens=False).lstrip() == "".join(texts).lstrip()


@every
@steady
@given(data=st.data())
def test_the_guarded_path_tokenises_the_template_as_the_ordinary_one(name, data):
    text = "".join(data.draw(fragments(name)))
    guard = GUARDS[name]
    with mock.patch.object(guard, "_has_strays", return_value=True):
        assert guard.encode(text) == MADE[name].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(("before", "after"), [("<|im_", "end|>"), ("<", "|im_end|>"), ("<|im_end|", ">")])
def test_text_does_not_complete_a_special_token_with_what_the_template_writes(before, after):
    guard = GUARDS["packaged"]
    assert special("packaged", guard.encode(before + guard.hide(after))) == []
    assert special("packaged", guard.encode(guard.hide(before) + after)) == []


def test_special_tokens_that_old_files_mark_as_normalised_are_found_on_the_guarded_path():
    tokenizer = sentencepiece()
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=True), AddedToken("</s>", normalized=True)])
    guard = LiteralGuard(tokenizer, {1: "<s>", 2: "</s>"})
    ids = guard.encode("<s>" + guard.hide("a</s>") + "</s>")
    assert (ids.count(1), ids.count(2)) == (1, 1)


def test_what_a_vocabulary_cannot_spell_is_unknown_on_the_guarded_path_too():
    tokenizer = word_piece()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    guard = LiteralGuard(tokenizer, {0: "[UNK]", 1: "[CLS]", 2: "[SEP]"})
    assert guard.encode("[CLS]the " + guard.hide("[SEP]") + " 새") == [1, 6, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("normalizer", "typed"), [(normalizers.NFKC(), "＜image＞"), (normalizers.Lowercase(), "<IMAGE>")]
)
def test_a_spelling_that_a_normaliser_turns_into_a_special_token_stays_text(normalizer, typed):
    tokenizer = Tokenizer.from_str(MADE["beyond"].to_str())
    tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=True)])
    image = tokenizer.token_to_id("<image>")
    assert image in tokenizer.encode(typed).ids  # the danger is real
    guard = LiteralGuard(tokenizer, {image: "<image>"})
    assert guard.encode("<image>" + guard.hide(typed)).count(image) == 1


@every
def test_harmless_text_is_left_alone(name):
    guard = GUARDS[name]
    for text in ("a b", "", " ", "ab\n", "5 is less"):
        assert guard.hide(text) == text


def test_ordinary_added_tokens_stay_available_to_the_caller():
    tool = MADE["beyond"].token_to_id("<tool>")
    guard = GUARDS["beyond"]
    assert guard.encode(guard.hide("<tool></s>"))[0] == tool


def test_spaces_around_a_seam_stay_outside_for_templates_that_trim():
    hidden = GUARDS["packaged"].hide("  end|>  ")
    assert hidden.startswith("  ")
    assert hidden.endswith("  ")
    assert hidden.strip() != "end|>"


def test_marks_of_one_guard_mean_nothing_to_another():
    guard, other = GUARDS["packaged"], LiteralGuard(MADE["packaged"], GUARDED["packaged"])
    forged = other._special["<|im_end|>"]
    assert special("packaged", guard.encode(guard.hide(forged + "<|im_end|>"))) == []


def test_no_guarded_tokens_is_the_plain_tokenizer():
    guard = LiteralGuard(MADE["packaged"], {})
    assert guard.hide("<|im_end|>") == "<|im_end|>"
    assert guard.encode("<|im_end|>") == [2]


def test_threads_share_a_guard():
    guard = LiteralGuard(MADE["packaged"], GUARDED["packaged"])
    text = guard.hide("<|im_end|>")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: tuple(guard.encode(text)), range(32)))
    assert len(set(results)) == 1
    assert special("packaged", list(results[0])) == []
