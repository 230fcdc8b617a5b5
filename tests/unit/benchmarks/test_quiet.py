from benchmarks.quiet import Look, complaints, look


def test_a_quiet_machine_has_no_complaints():
    assert complaints([Look(busy=0.02, pace_s=0.010), Look(busy=0.05, pace_s=0.0105)]) == []


def test_other_work_and_another_pace_are_told():
    found = complaints([Look(busy=0.02, pace_s=0.010), Look(busy=0.4, pace_s=0.015)])
    assert len(found) == 2
    assert "40%" in found[0]
    assert "10.0 ms at best and 15.0 ms at worst" in found[1]


def test_looking_says_something_plausible():
    found = look(0.02)
    assert 0.0 <= found.busy <= 1.0
    assert found.pace_s > 0
