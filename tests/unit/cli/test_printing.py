import pytest

from chiasm.cli.printing import time_left


@pytest.mark.parametrize(
    ("num_done", "elapsed_s", "told"),
    [
        (0, 0.0, ""),
        (19, 10.0, ""),
        (20, 1.0, ", about 49 s left"),
        (500, 60.0, ", about 60 s left"),
        (250, 60.0, ", about 3 min left"),
        (1000, 60.0, ""),
    ],
)
def test_the_time_of_the_rest_is_told_when_enough_is_done_to_tell(num_done, elapsed_s, told):
    assert time_left(num_done, 1000, elapsed_s) == told


def test_nothing_to_do_takes_no_time():
    assert time_left(0, 0, 0.0) == ""
