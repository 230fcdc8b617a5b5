from hypothesis import given
from hypothesis import strategies as st

from chiasm.cache.block_pool import BlockPool
from chiasm.cache.label import CacheLabel
from chiasm.protocol.deletion import Deletion


def chain(name: str, length: int) -> list[bytes]:
    return [f"{name}{i}".encode() for i in range(length)]


def test_match_finds_the_longest_prefix_only():
    pool = BlockPool(8)
    pool.insert(chain("a", 3))
    assert len(pool.match(chain("a", 5))) == 3
    assert pool.match([b"x", *chain("a", 3)]) == []


def test_insert_returns_only_what_must_be_filled():
    pool = BlockPool(8)
    assert [i for i, _ in pool.insert(chain("a", 2))] == [0, 1]
    assert [i for i, _ in pool.insert(chain("a", 4))] == [2, 3]


def test_the_least_recently_used_chain_goes_first_and_from_its_end():
    pool = BlockPool(4)
    pool.insert(chain("a", 2))
    pool.insert(chain("b", 2))
    pool.match(chain("a", 2))
    pool.insert(chain("c", 1))
    assert len(pool.match(chain("a", 2))) == 2
    assert len(pool.match(chain("b", 2))) == 1
    assert pool.num_evicted == 1


def test_a_prefix_longer_than_the_pool_keeps_its_start():
    pool = BlockPool(2)
    assert [i for i, _ in pool.insert(chain("a", 5))] == [0, 1]
    assert len(pool.match(chain("a", 5))) == 2


def labels(*media: str, salt: str = "") -> list[CacheLabel]:
    """One per block: the media up to there."""
    return [CacheLabel(salt, frozenset(media[: i + 1])) for i in range(len(media))]


A, B = "a" * 64, "b" * 64


def test_blocks_with_a_medium_are_deleted_and_those_before_it_stay():
    pool = BlockPool(8)
    pool.insert(chain("a", 3), [CacheLabel(), *labels(A, A)])
    pool.insert(chain("b", 2), labels(B, A))
    pool.insert(chain("c", 1))
    places, num_pinned = pool.forget(Deletion(identity=A))
    assert (len(places), num_pinned, len(pool)) == (3, 0, 3)
    pool.check_invariants()
    assert [len(pool.match(chain(name, 3))) for name in "abc"] == [1, 1, 1]
    assert [i for i, _ in pool.insert(chain("a", 3), [CacheLabel(), *labels(A, A)])] == [1, 2]


def test_a_scope_is_deleted_and_no_other():
    pool = BlockPool(8)
    pool.insert(chain("a", 2), labels(A, A, salt="ours"))
    pool.insert(chain("b", 2), labels(A, A, salt="theirs"))
    assert len(pool.forget(Deletion(cache_salt="ours"))[0]) == 2
    assert len(pool.match(chain("b", 2))) == 2


def test_pinned_blocks_are_deleted_when_they_are_unpinned_and_are_not_pinned_again():
    pool = BlockPool(8)
    pool.insert(chain("a", 2), labels(A, A))
    assert pool.pin(chain("a", 2)) == 2
    assert pool.forget(Deletion(identity=A)) == ([], 2)
    assert pool.pin(chain("a", 2)) == 0
    assert len(pool.match(chain("a", 2))) == 2, "who has pinned them counts on them"
    pool.check_invariants()
    pool.unpin(chain("a", 2))
    assert (len(pool), pool.num_pinned) == (0, 0)
    pool.check_invariants()


def test_what_is_computed_again_while_the_deleted_is_pinned_stays():
    pool = BlockPool(8)
    pool.insert(chain("a", 2), labels(A, A))
    pool.pin(chain("a", 2))
    pool.forget(Deletion(identity=A))
    assert pool.insert(chain("a", 2), labels(A, A)) == []
    pool.unpin(chain("a", 2))
    assert len(pool.match(chain("a", 2))) == 2
    pool.check_invariants()


def test_an_empty_pool_holds_nothing():
    pool = BlockPool(0)
    assert pool.insert(chain("a", 2)) == []
    assert pool.match(chain("a", 2)) == []


def test_pinned_blocks_stay_until_unpinned_as_often():
    pool = BlockPool(4)
    pool.insert(chain("a", 2))
    assert [pool.pin(chain("a", 5)), pool.pin(chain("a", 1))] == [2, 1]
    assert [i for i, _ in pool.insert(chain("b", 4))] == [0, 1]
    assert len(pool.match(chain("a", 2))) == 2
    pool.unpin(chain("a", 2))
    assert pool.num_pinned == 1
    pool.insert(chain("c", 3))
    assert len(pool.match(chain("a", 2))) == 1
    pool.unpin(chain("a", 1))
    pool.insert(chain("d", 4))
    assert pool.match(chain("a", 2)) == []
    assert pool.num_pinned == 0


def test_a_pool_of_pinned_blocks_takes_nothing_more():
    pool = BlockPool(2)
    pool.insert(chain("a", 2))
    pool.pin(chain("a", 2))
    assert pool.insert(chain("b", 2)) == []
    pool.clear()
    assert len(pool) == 2


_OPERATIONS = st.tuples(
    st.sampled_from("abcd"), st.integers(0, 9), st.sampled_from(["insert", "match", "pin", "unpin"])
)


@given(st.lists(_OPERATIONS, max_size=60))
def test_places_are_never_lost_nor_given_twice(operations):
    pool = BlockPool(6)
    content: dict[int, bytes] = {}
    pinned: list[list[bytes]] = []
    for name, length, operation in operations:
        hashes = chain(name, length)
        if operation == "insert":
            content.update({place: hashes[i] for i, place in pool.insert(hashes)})
        elif operation == "match":
            assert [content[place] for place in pool.match(hashes)] == hashes[: len(pool.match(hashes))]
        elif operation == "pin":
            pinned.append(hashes[: pool.pin(hashes)])
        elif pinned:
            pool.unpin(pinned.pop(0))
        pool.check_invariants()
        assert all(len(pool.match(hashes)) == len(hashes) for hashes in pinned)
