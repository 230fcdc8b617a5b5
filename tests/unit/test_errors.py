"""The error tree: codes are stable names, every class can be rebuilt from what crosses the wire."""

import inspect
import re

import pytest

from chiasm import errors
from chiasm.errors import ChiasmError, MediaError, OverloadedError, error_class


def _classes() -> list[type[ChiasmError]]:
    return [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, ChiasmError)]


@pytest.mark.parametrize("cls", _classes())
def test_codes_are_snake_case_and_names_end_in_error(cls):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", cls.code)
    assert cls.__name__.endswith("Error")
    assert cls.__doc__


@pytest.mark.parametrize("cls", _classes())
def test_a_code_names_the_class_or_the_most_general_one_that_shares_it(cls):
    found = error_class(cls.code)
    assert found.code == cls.code
    assert issubclass(cls, found)


def test_only_a_child_that_inherits_may_share_its_parents_code():
    for cls in _classes():
        for other in _classes():
            if cls is not other and cls.code == other.code:
                assert issubclass(cls, other) or issubclass(other, cls), (cls, other)


def test_a_code_of_another_version_becomes_the_base_class():
    assert error_class("from_the_future") is ChiasmError


def test_an_error_carries_what_the_caller_needs():
    error = MediaError("Item 2 is broken", hint="Send a PNG", param="/messages/0/content/2", item=2)
    assert (error.message, error.hint, error.param, error.item) == (
        "Item 2 is broken",
        "Send a PNG",
        "/messages/0/content/2",
        2,
    )
    assert str(error) == "Item 2 is broken"


def test_an_overload_says_when_to_come_back():
    assert OverloadedError("full").retry_after_s == 1
    assert OverloadedError("full", retry_after_s=7).retry_after_s == 7
    assert OverloadedError("full").retryable


@pytest.mark.parametrize("cls", [c for c in _classes() if issubclass(c, errors.RequestError | errors.SettingsError)])
def test_the_same_wrong_request_or_setting_is_never_retried(cls):
    assert not cls.retryable
