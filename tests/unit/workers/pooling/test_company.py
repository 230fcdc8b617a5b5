"""Which pictures of a request are encoded together, and that none waits for one that does not come."""

import asyncio

import pytest

from chiasm.engines.pooling.dual import Picture
from chiasm.workers.pooling.company import MOST_PICTURES, Company


class Tower:
    """Notes which pictures came together; `held` keeps it from ending."""

    def __init__(self):
        self.seen = []
        self.held = asyncio.Event()
        self.held.set()
        self.num_ended = 0

    async def encode(self, pictures):
        self.seen.append([one.identity for one in pictures])
        try:
            await self.held.wait()
        finally:
            self.num_ended += 1
        return list(self.seen[-1])


def decoding(name, done=None):
    async def decode():
        await asyncio.sleep(0)  # decoding always takes a while
        if done is not None:
            await done.wait()
        return Picture(name, 1, None)

    return decode


async def ask(company, *decodes):
    return [asyncio.ensure_future(company.encoded(one)) for one in decodes]


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def names(tasks):
    return [work[place] for work, place in await asyncio.gather(*tasks)]


async def test_while_decoding_takes_the_cores_pictures_wait_for_each_other():
    tower, done = Tower(), asyncio.Event()
    tasks = await ask(Company(tower.encode, lambda: True), decoding("a"), decoding("b", done), decoding("c"))
    await settle()
    assert tower.seen == []
    done.set()
    assert await names(tasks) == ["a", "b", "c"]
    assert [sorted(one) for one in tower.seen] == [["a", "b", "c"]]


async def test_otherwise_they_go_at_once():
    tower, done = Tower(), asyncio.Event()
    tasks = await ask(Company(tower.encode, lambda: False), decoding("a"), decoding("b", done))
    await settle()
    assert tower.seen == [["a"]]
    done.set()
    assert await names(tasks) == ["a", "b"]


async def test_only_so_many_wait_for_the_rest():
    tower, done = Tower(), asyncio.Event()
    first = [decoding(str(number)) for number in range(MOST_PICTURES)]
    tasks = await ask(Company(tower.encode, lambda: True), *first, decoding("late", done))
    await settle()
    assert tower.seen == [[str(number) for number in range(MOST_PICTURES)]]
    done.set()
    assert (await names(tasks))[-1] == "late"


async def test_one_that_cannot_be_decoded_keeps_nobody_waiting():
    async def broken():
        await asyncio.sleep(0)
        raise ValueError("broken")

    tower = Tower()
    tasks = await ask(Company(tower.encode, lambda: True), decoding("a"), broken)
    assert await names(tasks[:1]) == ["a"]
    with pytest.raises(ValueError, match="broken"):
        await tasks[1]


async def test_one_that_is_cancelled_while_it_is_decoded_keeps_nobody_waiting():
    tower = Tower()
    tasks = await ask(Company(tower.encode, lambda: True), decoding("a"), decoding("b", asyncio.Event()))
    await settle()
    tasks[1].cancel()
    assert await names(tasks[:1]) == ["a"]
    assert tower.seen == [["a"]]


async def test_one_that_is_cancelled_before_the_others_are_there_is_not_encoded():
    tower, done = Tower(), asyncio.Event()
    tasks = await ask(Company(tower.encode, lambda: True), decoding("a"), decoding("b", done))
    await settle()
    tasks[0].cancel()
    await settle()
    done.set()
    assert await names(tasks[1:]) == ["b"]
    assert tower.seen == [["b"]]


async def test_encoding_ends_with_the_last_who_waits_for_it():
    tower = Tower()
    tower.held.clear()
    tasks = await ask(Company(tower.encode, lambda: True), decoding("a"), decoding("b"))
    await settle()
    assert len(tower.seen) == 1
    tasks[0].cancel()
    await settle()
    assert tower.num_ended == 0
    tasks[1].cancel()
    await settle()
    assert tower.num_ended == 1


async def test_a_failure_of_the_tower_reaches_all_of_them():
    async def encode(_pictures):
        raise RuntimeError("no")

    tasks = await ask(Company(encode, lambda: True), decoding("a"), decoding("b"))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(one) for one in found] == ["no", "no"]
