from typing import Any

import msgspec
import pytest

from chiasm.connectors.base import ExpectedKv, check_kv, checksum
from chiasm.errors import ChecksumMismatchError, LayoutMismatchError
from chiasm.protocol.kv import KvMetadata

SHAPE = (2, 2, 1, 3, 4)
DATA = bytes(range(192))


def metadata(**changes: Any) -> KvMetadata:
    values: dict[str, Any] = {
        "num_tokens": 3,
        "shape": SHAPE,
        "dtype": "float32",
        "model_revision": "m1",
        "prompt_hash": "a" * 64,
        "checksum": checksum(DATA),
    }
    return KvMetadata(**(values | changes))


EXPECTED = ExpectedKv(num_tokens=3, shape=SHAPE, dtype="float32", model_revision="m1", prompt_hash="a" * 64)


def test_what_was_planned_passes():
    check_kv(metadata(), DATA, EXPECTED)
    check_kv(metadata(), memoryview(DATA), EXPECTED)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"num_tokens": 4},
        {"shape": (2, 2, 1, 4, 3)},
        {"dtype": "float16"},
        {"model_revision": "m2"},
        {"prompt_hash": "b" * 64},
        {"checksum": "blake3:" + "0" * 64},
        {"checksum": checksum(DATA).removeprefix("xxh3_128:")},
    ],
)
def test_what_was_not_planned_is_refused(changes):
    with pytest.raises(LayoutMismatchError):
        check_kv(metadata(**changes), DATA, EXPECTED)


@pytest.mark.parametrize(
    "changes",
    [{"num_tokens": 4}, {"shape": (2, 2, 1, 4, 3)}, {"dtype": "float16"}, {"model_revision": "m2"}],
)
def test_a_consumer_that_planned_otherwise_refuses(changes):
    with pytest.raises(LayoutMismatchError):
        check_kv(metadata(), DATA, msgspec.structs.replace(EXPECTED, **changes))


def test_a_shape_must_hold_the_tokens_that_are_announced():
    expected = msgspec.structs.replace(EXPECTED, num_tokens=4)
    with pytest.raises(LayoutMismatchError, match="tokens of the shape"):
        check_kv(metadata(num_tokens=4), DATA, expected)


def test_truncated_and_changed_bytes_are_refused():
    with pytest.raises(LayoutMismatchError, match="bytes"):
        check_kv(metadata(), DATA[:-1], EXPECTED)
    with pytest.raises(ChecksumMismatchError):
        check_kv(metadata(), DATA[:-1] + b"\0", EXPECTED)


def test_a_checksum_names_its_algorithm():
    assert checksum(b"abc") == "xxh3_128:06b05ab6733a618578af5f94892f3950"
