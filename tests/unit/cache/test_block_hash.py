import numpy as np

from chiasm.cache.block_hash import BLOCK_TOKENS, MediaSpan, block_hashes, block_labels

PICTURE = 7  # the placeholder token, the same for every picture


def prompt(num_tokens: int) -> np.ndarray:
    return np.arange(num_tokens, dtype=np.int64) % 5


def with_picture(key: str, offset: int = 4, rows: int = 40) -> tuple[np.ndarray, list[MediaSpan]]:
    tokens = prompt(64)
    tokens[offset : offset + rows] = PICTURE
    return tokens, [MediaSpan(key, offset, rows)]


def test_only_full_blocks_are_hashed():
    assert len(block_hashes(prompt(BLOCK_TOKENS - 1), [], "m")) == 0
    assert len(block_hashes(prompt(BLOCK_TOKENS * 2 + 3), [], "m")) == 2


def test_equal_prefixes_share_their_hashes_and_later_blocks_depend_on_earlier_ones():
    one, two = prompt(64), prompt(64)
    two[20] = 9
    left, right = block_hashes(one, [], "m"), block_hashes(two, [], "m")
    assert left[0] == right[0]
    assert all(a != b for a, b in zip(left[1:], right[1:], strict=True))


def test_same_tokens_with_another_picture_share_nothing_from_the_picture_on():
    tokens, spans = with_picture("a" * 64)
    other = [MediaSpan("b" * 64, spans[0].offset, spans[0].num_tokens)]
    assert not set(block_hashes(tokens, spans, "m")) & set(block_hashes(tokens, other, "m"))


def test_six_hundred_pictures_of_one_size_give_six_hundred_chains():
    chains = {block_hashes(*with_picture(f"{n:064x}"), "m")[-1] for n in range(600)}
    assert len(chains) == 600


def test_order_of_pictures_matters():
    tokens = prompt(64)
    tokens[:64] = PICTURE
    ab = [MediaSpan("a", 0, 32), MediaSpan("b", 32, 32)]
    ba = [MediaSpan("b", 0, 32), MediaSpan("a", 32, 32)]
    assert block_hashes(tokens, ab, "m")[-1] != block_hashes(tokens, ba, "m")[-1]


def test_the_same_rows_at_another_place_in_the_block_differ():
    tokens = prompt(32)
    tokens[:] = PICTURE
    assert (
        block_hashes(tokens, [MediaSpan("a", 0, 20)], "m")[1] != block_hashes(tokens, [MediaSpan("a", 4, 20)], "m")[1]
    )


def test_namespaces_never_meet():
    assert not set(block_hashes(prompt(64), [], "model-1")) & set(block_hashes(prompt(64), [], "model-2"))


def test_a_block_is_labelled_with_all_media_up_to_its_end():
    a, b = "a" * 64, "b" * 64
    media = (MediaSpan(f"{a}:m:p", 20, 4), MediaSpan(f"{b}:m:p:ours", 31, 40))
    found = block_labels(5, media, "ours")
    assert [label.media for label in found] == [set(), {a, b}, {a, b}, {a, b}, {a, b}]
    assert {label.cache_salt for label in found} == {"ours"}
    assert [label.media for label in block_labels(2, media[:1], "")] == [set(), {a}]
