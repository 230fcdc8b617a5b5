"""A request body to a checked request, telling four kinds of names apart (see the package's docstring)."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from chiasm.errors import InvalidRequestError
from chiasm.protocol.openai.faults import request_fault, unknown_field
from chiasm.protocol.openai.fields import FieldPolicy, check_field

Request = TypeVar("Request", bound=msgspec.Struct)


def decode_request(body: bytes | bytearray, kind: type[Request], policy: FieldPolicy, nested: Iterable[str]) -> Request:
    """Decode `body`; look at names one by one only when the honoured ones are not all there is.

    Args:
        body: UTF-8 JSON.
        kind: Request type; refuses names it does not have.
        policy: What to do with further top-level names.
        nested: Names known below the top level, for hints.
    """
    try:
        return _decode(body, kind, policy)
    except msgspec.DecodeError as error:
        raise request_fault(error, known=[*kind.__struct_fields__, *nested], kind=kind, body=body) from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply") from error


def _decode(body: bytes | bytearray, kind: type[Request], policy: FieldPolicy) -> Request:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.decode(msgspec.json.encode(_honoured(fields, kind, policy)), type=kind)


def _honoured(fields: dict[str, msgspec.Raw], kind: type[Any], policy: FieldPolicy) -> dict[str, msgspec.Raw]:
    honoured = {}
    for name, raw in fields.items():
        if name in kind.__struct_fields__:
            honoured[name] = raw
        elif name in policy:
            check_field(name, msgspec.json.decode(raw), policy[name], f"/{name}")
        else:
            raise unknown_field(name, "", [*kind.__struct_fields__, *policy])
    return honoured
