"""What a server's refusals become."""

import pytest

from chiasm.bench.server import fault_of
from chiasm.errors import CapacityError, EngineError


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (502, b"<html>", EngineError, "HTTP status 502"),
        (502, b"{}", EngineError, "HTTP status 502"),
        (429, b'{"error": {"code": "overloaded", "message": "too many", "hint": "wait"}}', CapacityError, "too many"),
    ],
)
def test_a_refusal_is_the_error_that_the_server_raised(status, body, error, said):
    found = fault_of(status, body)
    assert type(found) is error
    assert said in found.message
