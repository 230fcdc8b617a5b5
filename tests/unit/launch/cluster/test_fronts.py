"""Several gateways: each away from the others, back where it was, told the same, and their loads seen as one."""

import asyncio
from itertools import count

import pytest

from chiasm.errors import EngineStartError, InvalidSettingError
from chiasm.launch.cluster.fronts import Fronts, Where, merged
from chiasm.launch.processes.messages import Load, MemberLoad, Roster
from chiasm.settings import resolve


class Gateway:
    """An `ActorProcess` that runs until it is told to end."""

    def __init__(self, spec, settings, node):
        self.name, self.node, self.started_s, self.pid = spec.name, node, 0.0, 1
        self.address = f"http://{node}:{settings.gateway.port}"
        self.heard, self.is_alive, self._end, self.says = [], True, asyncio.Event(), Load({}, {})

    def wait_placed(self):
        if not self.node:
            raise EngineStartError("no node has room")

    def begin(self):
        self.has_begun = True

    def wait_ready(self, progress):
        assert self.has_begun

    async def ended(self):
        await self._end.wait()

    def wait(self, timeout_s):
        return not self.is_alive

    def kill(self):
        self.is_alive = False
        self._end.set()

    terminate = kill

    def tell(self, roster):
        self.heard.append(roster.number)

    async def load(self):
        return self.says


class Cluster:
    """Nodes with a place each, and the gateways on them."""

    def __init__(self, *nodes, gateways=2):
        self.nodes, self.asked, self.made, self._numbers = nodes, [], [], count(1)
        values = {"cluster.gateways": gateways, "gateway.store": "redis://h", "gateway.port": 9000}
        self.settings = resolve(values=values | {"routing.restart_backoff_s": 0.001}, environment={}).settings
        self.fronts = Fronts(self.settings, self._place, nodes[0], lambda: Roster(next(self._numbers), {}))

    def _place(self, spec, settings, where):
        self.asked.append(where)
        free = [node for node in self.nodes if node not in where.others] or [""]
        self.made.append(Gateway(spec, settings, where.node or free[0]))
        return self.made[-1]


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads set no event of this loop
            await asyncio.sleep(0.001)


def started(*nodes, gateways=2):
    cluster = Cluster(*nodes, gateways=gateways)
    cluster.fronts.reserve()
    cluster.fronts.start(lambda what, share: None)
    return cluster


async def test_each_gateway_comes_to_a_node_of_its_own_and_is_told_who_is_behind_it():
    cluster = started("here", "b", "c", gateways=3)
    assert [one.node for one in cluster.made] == ["here", "b", "c"]
    assert cluster.asked[0].node == "here"
    assert cluster.asked[2] == Where(None, ("here", "b"))
    assert cluster.fronts.addresses == ["http://here:9000", "http://b:9001", "http://c:9002"]
    cluster.fronts.tell()
    assert [len(one.heard) for one in cluster.made] == [2, 2, 2]
    assert len({one.heard[-1] for one in cluster.made}) == 1


async def test_one_that_dies_comes_back_where_it_was_while_the_others_listen():
    cluster = started("here", "b")
    keeping = asyncio.create_task(cluster.fronts.keep())
    try:
        await until(lambda: len(cluster.fronts.addresses) == 2)
        cluster.made[1].kill()
        await until(lambda: len(cluster.made) == 3 and len(cluster.fronts.addresses) == 2)
        assert (cluster.asked[2].node, cluster.fronts.addresses[1]) == ("b", "http://b:9001")
        assert cluster.made[2].heard, "it knows who is behind it"
        assert cluster.made[0].is_alive
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
    cluster.fronts.stop()
    assert not any(one.is_alive for one in cluster.made)


async def test_where_one_finds_no_place_none_stays():
    cluster = Cluster("here")
    with pytest.raises(EngineStartError, match="no node"):
        cluster.fronts.reserve()
    cluster.fronts.stop()
    assert not any(one.is_alive for one in cluster.made)


def test_several_without_a_store_are_refused():
    settings = resolve(values={"cluster.gateways": 2}, environment={}).settings
    with pytest.raises(InvalidSettingError, match="need a store"):
        Fronts(settings, lambda spec, settings, where: None, "here", lambda: Roster(1, {}))


def one(queue_s, **members):
    return Load({"encoder_queue_seconds": queue_s}, {name: MemberLoad(*seen) for name, seen in members.items()})


def test_loads_add_up_and_a_worker_is_down_only_for_all():
    seen = merged([one(0.5, a=("ready", 1), b=("down", 0)), one(0.25, a=("draining", 2), b=("down", 0), c=("down", 0))])
    assert seen.levels == {"encoder_queue_seconds": 0.75}
    assert seen.members == {"a": MemberLoad("ready", 3), "b": MemberLoad("down", 0), "c": MemberLoad("down", 0)}
    assert merged([one(0, a=("draining", 0)), one(0, a=("down", 1))]).members["a"] == MemberLoad("draining", 1)


def test_nothing_is_known_while_one_that_listens_does_not_say():
    assert merged([]) is None
    assert merged([one(0.5), None]) is None


async def test_the_load_is_that_of_those_that_listen():
    cluster = started("here", "b")
    cluster.made[0].says, cluster.made[1].says = one(1.0), one(2.0)
    assert (await cluster.fronts.load()).levels == {"encoder_queue_seconds": 3.0}
    cluster.made[1].says = None
    assert await cluster.fronts.load() is None
    await cluster.fronts._down("gateway-1")
    assert (await cluster.fronts.load()).levels == {"encoder_queue_seconds": 1.0}
