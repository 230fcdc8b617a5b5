from pathlib import Path

import pytest

import chiasm
from chiasm.engines.embedded.output.stream import OutputStream
from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.engines.embedded.sampling.sampler import SampledToken
from chiasm.errors import InvalidRequestError
from chiasm.protocol.generation import ChoiceFinished, SamplingParams, TokenEvent

TOKENIZER = ModelTokenizer(Path(chiasm.__file__).parent / "models" / "tiny_vlm")
IM_END, END_OF_TEXT, IM_START = 2, 0, 1


def encode(text: str) -> list[int]:
    return list(TOKENIZER.backend.encode(text, add_special_tokens=False).ids)


def run(ids: list[int], choice: int = 0, **params) -> tuple[str, ChoiceFinished | None, OutputStream]:
    stream = OutputStream(choice, SamplingParams(**params), TOKENIZER, TOKENIZER.eos_token_ids)
    text, end = "", None
    for at, token_id in enumerate(ids):
        *tokens, last = stream.push(SampledToken(token_id))
        if isinstance(last, ChoiceFinished):
            end = last
        else:
            tokens.append(last)
        assert [event.token_ids for event in tokens] == [(token_id,)]
        assert all(event.choice == choice for event in tokens)
        text += "".join(event.text for event in tokens)
        assert stream.num_tokens == at + 1
        if end is not None:
            assert stream.is_finished
            break
    return text, end, stream


@pytest.mark.parametrize("text", ["Hello there.", "안녕하세요 😀!", "a\n\nb  c", "naïve — café"])
def test_text_is_that_of_decode(text):
    ids = encode(text)
    assert run([*ids, IM_END])[0] == TOKENIZER.backend.decode(ids) == text


def test_end_of_text_ends_without_its_own_text():
    text, end, stream = run([*encode("Yes."), IM_END, *encode("more")], choice=3, skip_special_tokens=False)
    assert (text, end) == ("Yes.", ChoiceFinished(3, "stop"))
    assert stream.num_tokens == len(encode("Yes.")) + 1


def test_every_end_of_text_id_ends():
    assert run([END_OF_TEXT])[1] == ChoiceFinished(0, "stop")


def test_ignored_end_of_text_goes_on():
    ids = [*encode("a"), IM_END, *encode("b")]
    assert run(ids, ignore_eos=True)[:2] == ("ab", None)
    assert run(ids, ignore_eos=True, skip_special_tokens=False)[0] == "a<|im_end|>b"


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_tokens": 5}])
def test_end_of_text_always_ends_a_document(params):
    assert run([IM_END], json_schema="{}", **params)[1] == ChoiceFinished(0, "stop")


def test_special_tokens_are_left_out_unless_asked_for():
    ids = [IM_START, *encode("x")]
    assert run(ids)[0] == "x"
    assert run(ids, skip_special_tokens=False)[0] == "<|im_start|>x"


def test_stop_token_id_is_named_and_not_sent():
    stop = encode("!")[0]
    assert run([*encode("Hi"), stop], stop_token_ids=(stop,))[:2] == ("Hi", ChoiceFinished(0, "stop", stop))


def test_end_of_text_that_is_also_a_stop_token_counts_as_end_of_text():
    assert run([IM_END], stop_token_ids=(IM_END,))[1] == ChoiceFinished(0, "stop")


def test_stop_string_over_several_tokens_is_cut_off():
    text, end, _ = run(encode("Red. Then STOP here"), stop=("STOP",))
    assert (text, end) == ("Red. Then ", ChoiceFinished(0, "stop", "STOP"))


def test_text_held_for_a_stop_string_is_sent_at_the_end():
    ids = encode("one ST")
    assert run([*ids, IM_END], stop=("STOP",))[0] == "one ST"
    assert run(ids, stop=("STOP",), max_tokens=len(ids))[:2] == ("one ST", ChoiceFinished(0, "length"))


def test_max_tokens_ends_with_length():
    ids = encode("one two three")
    text, end, _ = run(ids, max_tokens=2)
    assert (text, end) == (TOKENIZER.backend.decode(ids[:2]), ChoiceFinished(0, "length"))


def test_end_of_text_as_the_last_allowed_token_is_a_stop():
    assert run([*encode("a"), IM_END], max_tokens=2)[1] == ChoiceFinished(0, "stop")


def test_stop_string_completed_by_the_last_allowed_token_is_a_stop():
    ids = encode("ab")
    assert run(ids, max_tokens=len(ids), stop=("b",))[:2] == ("a", ChoiceFinished(0, "stop", "b"))


@pytest.mark.parametrize("ending", [[IM_END], []])
def test_incomplete_character_at_the_end_is_what_decode_gives(ending):
    ids = encode("😀")[:-1]
    text, end, _ = run([*ids, *ending], max_tokens=len(ids) + len(ending))
    assert text == TOKENIZER.backend.decode(ids)
    assert "\ufffd" in text
    assert end is not None


def test_nothing_ends_before_min_tokens():
    ids = [*encode("a"), IM_END, *encode("b"), IM_END]
    assert run(ids, min_tokens=2)[:2] == ("ab", ChoiceFinished(0, "stop"))
    text, end, _ = run(encode("aaab"), stop=("a",), min_tokens=1)
    assert (text, end) == ("a", ChoiceFinished(0, "stop", "a"))


def test_empty_stop_string_is_refused():
    with pytest.raises(InvalidRequestError) as caught:
        run([], stop=("x", ""))
    assert caught.value.param == "/stop"


def test_logprobs_carry_text_and_bytes():
    ids = encode("😀")
    stream = OutputStream(0, SamplingParams(num_top_logprobs=2), TOKENIZER, TOKENIZER.eos_token_ids)
    seen = b""
    for token_id in ids:
        (event,) = stream.push(SampledToken(token_id, -0.5, ((token_id, -0.5), (IM_END, float("-inf")))))
        assert isinstance(event, TokenEvent)
        (entry,) = event.logprobs
        assert (entry.token_id, entry.logprob) == (token_id, -0.5)
        assert entry.token == entry.token_bytes.decode("utf-8", "replace")
        assert [(top.token_id, top.token, top.logprob) for top in entry.top][1] == (IM_END, "<|im_end|>", -9999.0)
        seen += entry.token_bytes
    assert seen.decode() == "😀"


def test_end_of_text_has_its_logprob_too():
    stream = OutputStream(0, SamplingParams(num_top_logprobs=0), TOKENIZER, TOKENIZER.eos_token_ids)
    event, end = stream.push(SampledToken(IM_END, -0.25))
    assert isinstance(end, ChoiceFinished)
    assert [(e.token, e.logprob, e.top) for e in event.logprobs] == [("<|im_end|>", -0.25, ())]
