"""Nothing about an embedding is believed that was not said by its producer about this very item."""

import msgspec
import pytest

from chiasm.engines.vllm.ec.announcement import (
    Expected,
    check_expected,
    check_wanted,
    is_same_metadata,
    read_announcement,
)
from chiasm.errors import ChecksumMismatchError, HandleExpiredError, LayoutMismatchError
from tests.unit.engines.vllm.embeddings import EXPECTED, GRID, LAYOUT, announcement, embedding, wanted


def params(**changes):
    said = msgspec.to_builtins(announcement(embedding(1), "a")) | changes
    return {"a": {"item_indices": [0], "metadata": GRID, "chiasm": said}}


def test_what_was_announced_is_read_back():
    said, metadata = read_announcement("a", params())
    assert said == announcement(embedding(1), "a")
    assert metadata == GRID


@pytest.mark.parametrize(
    "said", [None, {}, [], "x", {"b": {}}, {"a": None}, {"a": {"metadata": GRID}}, {"a": {"chiasm": 3}}]
)
def test_a_request_that_does_not_say_where_is_unavailable(said):
    with pytest.raises(HandleExpiredError):
        read_announcement("a", said)


def test_an_encoders_own_failure_is_unavailable():
    with pytest.raises(HandleExpiredError):
        read_announcement("a", {"a": {"metadata": GRID, "chiasm": {"error": "overloaded"}}})


@pytest.mark.parametrize("field", ["transport", "address", "layout", "checksum"])
def test_a_missing_field_is_malformed(field):
    said = params()
    del said["a"]["chiasm"][field]
    with pytest.raises(LayoutMismatchError):
        read_announcement("a", said)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": "1" * 10_000},
        {"transport": "carrier pigeon"},
        {"address": "x" * 2000},
        {"layout": {"shape": [0, 8], "dtype": "float32", "revision": "rev"}},
        {"layout": {"shape": [-4, 8], "dtype": "float32", "revision": "rev"}},
        {"layout": {"shape": [4, 8, 1], "dtype": "float32", "revision": "rev"}},
        {"layout": {"shape": [2**40, 8], "dtype": "float32", "revision": "rev"}},
        {"layout": {"shape": [4, 8], "dtype": "int8", "revision": "rev"}},
        {"checksum": 5},
    ],
)
def test_absurd_values_are_refused(changes):
    with pytest.raises(LayoutMismatchError) as error:
        read_announcement("a", params(**changes))
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("changes", [{"address": "b", "seal": ""}, {"checksum": "xxh3_128:0"}, {"seal": "xxh3_128:0"}])
def test_a_changed_announcement_breaks_its_seal_where_it_matters(changes):
    with pytest.raises(ChecksumMismatchError):
        read_announcement("a", params(**changes))


def test_an_announcement_of_another_item_is_refused():
    said = params()
    with pytest.raises(ChecksumMismatchError):
        read_announcement("b", {"b": said["a"]})


def test_a_seal_holds_though_json_was_written_by_others():
    for metadata in ({"image_grid_thw": [1.0, 4, 4.0]}, {"image_grid_thw": [[1, 4, 4]]}):
        said = params()
        said["a"]["metadata"] = metadata
        read_announcement("a", said)


def test_a_changed_grid_breaks_the_seal():
    said = params()
    said["a"]["metadata"] = {"image_grid_thw": [1, 2, 8]}
    with pytest.raises(ChecksumMismatchError):
        read_announcement("a", said)


@pytest.mark.parametrize(
    "item",
    [
        wanted("a", num_rows=3),
        wanted("a", num_rows=5),
        wanted("a", num_rows=0),
        wanted("a", metadata={"image_grid_thw": [1, 2, 8]}),
        wanted("a", metadata={"image_grid_thw": [1, -4, -4]}),
        wanted("a", metadata={}),
        wanted("a", metadata=None),
    ],
)
def test_a_request_with_other_places_is_refused(item):
    with pytest.raises(LayoutMismatchError):
        check_wanted(LAYOUT, GRID, item)


def test_how_deep_a_grid_is_nested_is_a_matter_of_taste():
    check_wanted(LAYOUT, GRID, wanted("a", metadata={"image_grid_thw": [[1, 4, 4]]}))
    assert not is_same_metadata({"a": [1]}, {"b": [1]})


@pytest.mark.parametrize(("field", "value"), [("width", 9), ("dtype", "bfloat16"), ("revision", "other")])
def test_an_embedding_of_another_model_is_refused(field, value):
    expected = Expected(**(msgspec.to_builtins(EXPECTED) | {field: value}))
    with pytest.raises(LayoutMismatchError, match=field):
        check_expected(LAYOUT, GRID, expected)


@pytest.mark.parametrize(
    "grid",
    [
        [1, -4, -4],
        [-1, 4, -4],
        [0, 0, 0],
        [1, 4],
        [1.0, 4, 4],
        [True, 4, 4],
        [1, 1, 16],
        [1, 3, 4],
        [4, 4],
        [1, 4, 8],
        ["1", "4", "4"],
        [None],
        {"a": 1},
        [1, 4, float("nan")],
    ],
    ids=str,
)
def test_a_grid_that_no_encoder_has_is_refused_though_its_seal_fits(grid):
    with pytest.raises(LayoutMismatchError):
        check_expected(LAYOUT, {"image_grid_thw": grid}, EXPECTED)
