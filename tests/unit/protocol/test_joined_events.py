"""Token events of one choice joined into one."""

from chiasm.protocol.generation import ChoiceFinished, TokenEvent, TokenLogprob, merge_adjacent


def test_only_neighbours_of_the_same_choice_are_merged():
    def event(choice, text, logprobs=None):
        return TokenEvent(choice, text, (1,), logprobs)

    lp = (TokenLogprob(1, "x", b"x", -1.0),)
    assert merge_adjacent([event(0, "a"), event(0, "b"), event(1, "c"), event(0, "d")]) == [
        TokenEvent(0, "ab", (1, 1)),
        event(1, "c"),
        event(0, "d"),
    ]
    end = ChoiceFinished(0, "stop")
    assert merge_adjacent([event(0, "a", lp), event(0, "b", lp), end]) == [TokenEvent(0, "ab", (1, 1), lp + lp), end]
