"""Errors cross the wire as the class they were, and other servers' errors become one of ours."""

import json

import pytest

from chiasm import errors
from chiasm.protocol.wire import decode_fault, encode_fault


def raised(root=errors.ChiasmError):
    """Every class that is raised: those whose code no subclass shares."""
    own = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    shared = any(child.code == root.code for child in own)
    return [*([] if shared else [root]), *(cls for child in own for cls in raised(child))]


@pytest.mark.parametrize("cls", raised(), ids=lambda cls: cls.__name__)
def test_an_error_is_rebuilt_as_what_it_was(cls):
    error = cls("what happened", hint="what to do")
    again = decode_fault(500, encode_fault(error))
    assert type(again) is cls
    assert (again.message, again.hint, again.param, again.item) == ("what happened", "what to do", None, None)


def test_place_and_item_go_along():
    error = errors.MediaDecodeError("broken", hint="whole", param="/messages/0", item=3)
    again = decode_fault(400, encode_fault(error))
    assert (again.param, again.item) == ("/messages/0", 3)


def test_when_to_come_back_goes_along():
    again = decode_fault(429, encode_fault(errors.OverloadedError("full", retry_after_s=7)))
    assert isinstance(again, errors.OverloadedError)
    assert again.retry_after_s == 7


@pytest.mark.parametrize(
    ("status", "message", "cls"),
    [
        (500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", errors.EngineDeadError),
        (500, "Internal server error", errors.EngineStepError),
        (400, "At most 4 image(s)...", errors.InvalidRequestError),
        (404, "The model `x` does not exist.", errors.ModelNotFoundError),
        (418, "?", errors.EngineError),
    ],
)
def test_other_servers_errors_become_ours(status, message, cls):
    body = {"error": {"message": message, "type": "x", "param": None, "code": status}}
    assert type(decode_fault(status, json.dumps(body).encode())) is cls


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"error":1}', b'{"error":{}}', b"[" * 100_000])
def test_a_body_that_is_no_error_is_one_by_its_status(body):
    assert type(decode_fault(503, body)) is errors.ShuttingDownError
    assert type(decode_fault(599, body)) is errors.EngineError


def test_a_code_of_another_version_is_judged_by_status():
    body = json.dumps({"error": {"message": "m", "code": "of_tomorrow"}}).encode()
    assert type(decode_fault(400, body)) is errors.InvalidRequestError


def test_a_message_has_an_end():
    body = json.dumps({"error": {"message": "m" * 100_000, "code": "engine_dead"}}).encode()
    assert len(decode_fault(500, body).message) == 2000
