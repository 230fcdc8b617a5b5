"""When media may go through files of the host."""

import pytest

from chiasm.launch.fleet import shares_a_host
from chiasm.settings import RoutingSettings


@pytest.mark.parametrize(
    ("members", "expected"),
    [((), True), (("unix:/run/a.sock",), True), (("unix:/run/a.sock", "http://10.0.0.7:9001"), False)],
)
def test_media_go_through_the_spool_only_when_every_worker_is_on_this_host(members, expected):
    assert shares_a_host(RoutingSettings(members=members)) is expected
