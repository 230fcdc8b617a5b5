"""What the chaos run makes of its notes."""

import pytest

from benchmarks.chaos import Tally, complaints, recovery_s

OK, FAILED = "finished", "engine_dead"


def tally(ends, events=((10.0, "kill"),)):
    return Tally(ends=list(ends), events=list(events))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(9.0, FAILED), (11.0, OK), (12.0, OK)], 0.0),
        ([(11.0, FAILED), (12.0, OK), (13.0, OK), (14.0, OK)], 2.0),
        ([(11.0, OK), (12.5, FAILED), (12.7, FAILED), (13.0, OK), (14.0, OK), (15.0, OK)], 3.0),
        ([(11.0, FAILED), (12.0, OK)], None),
        ([], 0.0),
    ],
)
def test_recovery_is_from_the_event_to_the_answers_after_its_last_failure(ends, expected):
    assert recovery_s(tally(ends), 10.0) == expected


def test_what_fails_after_the_next_event_is_not_counted():
    events = [(10.0, "kill"), (20.0, "cut")]
    ends = [(11.0, OK), (21.0, FAILED), (22.0, OK), (23.0, OK), (24.0, OK)]
    assert recovery_s(tally(ends, events), 10.0) == 0.0
    assert recovery_s(tally(ends, events), 20.0) == 2.0


RIGHT = {"wrong_answers": 0, "ended": 5, "requests": 5, "outcomes": {OK: 4, FAILED: 1}, "availability": 0.8}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"wrong_answers": 1}, "answers are wrong"),
        ({"ended": 4}, "requests did not end"),
        ({"outcomes": {OK: 4, "no_answer": 1}}, "requests ended without an answer or a code"),
        ({"availability": 0.0}, "nothing was answered"),
    ],
)
def test_what_must_not_be_is_said(change, complaint):
    assert complaints(RIGHT) == []
    assert complaints(RIGHT | change) == [complaint]
