"""What the soak complains of, and how it reads memory."""

import pytest

from benchmarks.soak import complaints, main, questions_of, slope

GOOD = {
    "requests": 10,
    "ends": {"finished": 7, "left": 2, "embedding_unavailable": 1},
    "wrong_answers": 0,
    "server": {"received": 9.0, "finished": 7.0, "cancelled": 1.0, "embedding_unavailable": 1.0},
    "stays": [],
    "before": {"tasks": 5},
    "after": {"tasks": 5},
}


def test_nothing_is_wrong_with_a_good_run():
    assert complaints(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"ends": {"finished": 7}}, "clients"),
        ({"server": {"received": 9.0, "finished": 7.0}}, "server"),
        ({"ends": {"finished": 9, "internal_error": 1}}, "explains"),
        ({"wrong_answers": 1}, "answers"),
        ({"stays": ["spool: files stay: 1"]}, "stays"),
        ({"after": {"tasks": 6}}, "tasks"),
    ],
)
def test_whatever_is_wrong_is_named(changed, word):
    (found,) = complaints(GOOD | changed)
    assert word in found


@pytest.mark.parametrize(
    "options",
    ["--seconds 0", "--seconds nan", "--requests 0", "--clients 0", "--questions -1", "--faults 2", "--leave -0.1"],
)
def test_a_run_that_could_ask_nothing_is_refused_before_anything_is_started(options, capsys):
    with pytest.raises(SystemExit) as caught:
        main(options.split())
    assert caught.value.code == 2
    assert options.split()[0] in capsys.readouterr().err


def test_a_run_in_which_nothing_was_asked_is_wrong():
    nothing = {"requests": 0, "ends": {}, "server": {"received": 0.0}}
    assert complaints(GOOD | nothing) == ["nothing was asked"]
    assert slope([]) == 0.0


def test_growth_is_counted_after_the_warm_up():
    warming, growing = [(n, 1000 * n) for n in range(50)], [(n, 50_000 + 8 * n) for n in range(50, 100)]
    assert slope(warming + growing) == pytest.approx(8.0)


def test_questions_differ_and_half_of_them_show_pictures():
    asked = questions_of(40)
    assert len(set(asked)) == 40
    assert [len(one.pictures) for one in asked[:9]] == [2, 0, 1, 0, 1, 0, 1, 0, 2]
