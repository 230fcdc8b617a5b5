import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.engines.embedded.output.stops import StopMatcher

steady = settings(deadline=None)  # the cores are shared


def run(stops: tuple[str, ...], deltas: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    sent = ""
    for delta in deltas:
        text, stop = matcher.push(delta)
        sent += text
        if stop is not None:
            return sent, stop
    return sent + matcher.flush(), None


def expected(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


alphabet = st.text("ab<", min_size=1, max_size=4)


@steady
@given(st.lists(alphabet, min_size=1, max_size=4).map(tuple), st.lists(st.text("ab<", max_size=5), max_size=12))
def test_result_is_that_of_the_whole_text_however_it_is_cut(stops, deltas):
    assert run(stops, deltas) == expected(stops, "".join(deltas))


@steady
@given(st.lists(alphabet, min_size=1, max_size=4).map(tuple), st.lists(st.text("ab<", max_size=5), max_size=12))
def test_only_text_that_may_begin_a_stop_string_is_held(stops, deltas):
    matcher = StopMatcher(stops)
    seen = sent = ""
    for delta in deltas:
        text, stop = matcher.push(delta)
        if stop is not None:
            return
        seen, sent = seen + delta, sent + text
        held = seen[len(sent) :]
        assert seen.startswith(sent)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_stop_string_across_several_deltas_is_not_sent():
    assert run(("<|end|>",), ["Hello<", "|e", "nd", "|>", "more"]) == ("Hello", "<|end|>")


def test_text_held_back_is_sent_when_it_turns_out_harmless():
    assert run(("STOP",), ["a ST", "OL b"]) == ("a STOL b", None)


def test_a_second_beginning_inside_a_failed_one_is_held_too():
    assert run(("abab",), ["aab", "ab"]) == ("a", "abab")
    assert run(("aab",), ["aa", "a", "b"]) == ("a", "aab")


def test_first_to_complete_wins_and_the_longest_of_these():
    assert run(("abcdef", "cd"), ["abcd", "ef"]) == ("ab", "cd")
    assert run(("cd", "bcd"), ["abcd"]) == ("a", "bcd")


@pytest.mark.parametrize("stop", ["\n\n", "그만", "😀"])
def test_stop_strings_are_characters_not_bytes(stop):
    assert run((stop,), ["x", *stop, "y"]) == ("x", stop)
