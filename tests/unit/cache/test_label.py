import pytest

from chiasm.cache.label import CacheLabel, Deletions
from chiasm.protocol.deletion import Deletion

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("deletion", "covered"),
    [
        (Deletion(identity=A), {("", A), ("ours", A), ("ours", A + B)}),
        (Deletion(cache_salt="ours"), {("ours", A), ("ours", A + B), ("ours", "")}),
        (Deletion(cache_salt=""), {("", A), ("", B)}),
        (Deletion(identity=A, cache_salt="ours"), {("ours", A), ("ours", A + B)}),
    ],
)
def test_a_deletion_covers_a_medium_a_scope_or_both(deletion, covered):
    things = {("", A), ("", B), ("ours", A), ("ours", A + B), ("ours", ""), ("theirs", B)}
    labels = {
        (salt, media): CacheLabel(salt, frozenset(media[i : i + 64] for i in range(0, len(media), 64)))
        for salt, media in things
    }
    assert {thing for thing, label in labels.items() if label.is_covered(deletion)} == covered


def test_what_was_begun_before_a_deletion_is_covered_and_what_came_after_is_not():
    deletions, label = Deletions(), CacheLabel("", frozenset({A}))
    deletions.add(Deletion(identity=A), 10.0)
    deletions.add(Deletion(identity=B), 20.0)
    assert [deletions.cover(label, begun_s) for begun_s in (5.0, 10.0, 10.5, 25.0)] == [True, True, False, False]
    assert not Deletions().cover(label, 0.0)
