"""Every error has a status, and bodies have OpenAI's form."""

import json

import pytest

from chiasm import errors
from chiasm.protocol.openai.errors import STATUS, encode_error, error_body, error_headers, fault_body, status_of


def tree(root=errors.ChiasmError):
    return [root, *(c for sub in root.__subclasses__() if sub.__module__ == root.__module__ for c in tree(sub))]


def test_the_table_has_exactly_the_codes_of_the_tree():
    assert set(STATUS) == {cls.code for cls in tree()}


@pytest.mark.parametrize("cls", tree(), ids=lambda cls: cls.__name__)
def test_who_is_to_blame_shows_in_the_status(cls):
    status = status_of(cls("x"))
    if issubclass(cls, errors.RequestError | errors.RequestCancelledError):
        assert 400 <= status < 500
    elif issubclass(cls, errors.OverloadedError) or cls is errors.CapacityError:
        assert status == 429
    else:
        assert status >= 500


def test_a_code_from_elsewhere_is_a_500():
    class FutureError(errors.ChiasmError):
        code = "of_tomorrow"

    assert status_of(FutureError("x")) == 500


def test_the_body():
    error = errors.MediaDecodeError("Media item 1: broken", hint="Send it whole", param="/messages/0", item=1)
    assert json.loads(encode_error(error_body(error))) == {
        "error": {
            "message": "Media item 1: broken",
            "type": "invalid_request_error",
            "param": "/messages/0",
            "code": "media_undecodable",
            "hint": "Send it whole",
        }
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.AuthenticationError("x"), "authentication_error"),
        (errors.OverloadedError("x"), "rate_limit_error"),
        (errors.ContextLengthError("x"), "invalid_request_error"),
        (errors.EngineDeadError("x"), "server_error"),
        (errors.RequestCancelledError("x"), "server_error"),
    ],
)
def test_openai_types(error, kind):
    assert error_body(error).error.type == kind


def test_headers():
    assert error_headers(errors.OverloadedError("x", retry_after_s=7)) == [(b"retry-after", b"7")]
    assert (b"retry-after", b"1") in error_headers(errors.ShuttingDownError("x"))
    assert error_headers(errors.AuthenticationError("x")) == [(b"www-authenticate", b"Bearer")]
    assert error_headers(errors.LayoutMismatchError("x")) == [(b"x-should-retry", b"false")]
    assert error_headers(errors.EngineStepError("x")) == []
    assert error_headers(errors.InvalidRequestError("x")) == []


def test_refusals_by_http_itself():
    assert fault_body(404, "No such path").error.code == "not_found"
    assert fault_body(405, "x").error.code == "method_not_allowed"
    assert fault_body(418, "x").error.code == "http_error"
