from benchmarks.quiet import Look, complaints, look


def test_a_quiet_machine_has_no_complaints():
    assert complaints([Look(busy=0.02, pace_s=0.010), Look(busy=0.05, pace_s=0.0105)]) == []


def test_other_work_and_another_pace_are_told():
    looks = [Look(busy=0.02, pace_s=0.010), Look(busy=0.4, pace_s=0.015), Look(busy=0.02, pace_s=0.016)]
    found = complaints(looks)
    assert len(found) == 2
    assert "40%" in found[0]
    assert "10.0 ms at best and 15.0 ms at the median look" in found[1]


def test_a_pace_that_is_seldom_another_is_the_machine_s_own():
    """On a host shared with other machines the pace drops for a second now and then; medians do not show it."""
    usual = [Look(busy=0.02, pace_s=0.010)] * 3
    assert complaints([*usual, Look(busy=0.02, pace_s=0.019)]) == []


def test_looking_says_something_plausible():
    found = look(0.02)
    assert 0.0 <= found.busy <= 1.0
    assert found.pace_s > 0
