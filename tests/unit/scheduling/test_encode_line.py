import random
from dataclasses import dataclass

from chiasm.scheduling.encode_line import EncodeLine
from chiasm.scheduling.precedence import MAX_PASSED


@dataclass(eq=False)
class Picture:
    owner: str
    num_embeddings: int = 64


def line_of(*pictures: Picture) -> EncodeLine[Picture]:
    line: EncodeLine[Picture] = EncodeLine()
    for picture in pictures:
        line.add(picture)
    return line


def owners(line: EncodeLine[Picture], room: int = 64) -> list[str]:
    """Whose pictures are encoded, batch by batch."""
    found = []
    while line:
        found.append("".join(picture.owner for picture in line.take(room)))
    return found


def test_one_picture_does_not_wait_for_eight():
    assert owners(line_of(*[Picture("a") for _ in range(8)], Picture("b"))) == ["b", *"aaaaaaaa"]


def test_of_two_alike_the_first_is_complete_first():
    a, b = ([Picture(name) for _ in range(3)] for name in "ab")
    assert owners(line_of(a[0], b[0], a[1], b[1], a[2], b[2])) == [*"aaabbb"]


def test_what_is_left_counts_and_not_what_there_was():
    line = line_of(*[Picture("a") for _ in range(3)])
    line.take(64)
    line.take(64)
    for _ in range(2):
        line.add(Picture("b"))
    assert owners(line) == [*"abb"]


def test_a_large_request_goes_on_however_many_small_ones_come():
    line, large, batches = line_of(*[Picture("large") for _ in range(8)]), 8, 0
    while large:
        line.add(Picture(f"small {batches}"))
        large -= line.take(64)[0].owner == "large"
        batches += 1
        assert batches <= 8 * (2 * MAX_PASSED)


def test_batches_keep_to_their_room_but_for_one_picture():
    rng = random.Random(5)
    pictures = [Picture(str(rng.randrange(6)), rng.choice([16, 64, 300])) for _ in range(60)]
    line, seen = line_of(*pictures), []
    while line:
        batch = line.take(128)
        assert len(batch) == 1 or sum(picture.num_embeddings for picture in batch) <= 128
        seen += batch
    assert sorted(map(id, seen)) == sorted(map(id, pictures))


def test_one_that_left_is_not_encoded():
    gone, stays = Picture("a"), Picture("a")
    line = line_of(gone, stays)
    line.remove(gone)
    line.remove(gone)
    assert line.take(1000) == [stays]
    assert line.take(1000) == []
