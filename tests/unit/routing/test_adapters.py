"""Adapters over a fleet: all members that speak have the same one, or none keeps it."""

import pytest

from chiasm.errors import AdapterError, EngineDeadError, UnsupportedFeatureError
from chiasm.protocol.adapters import AdapterInfo, AdapterLoad, AdapterRef
from chiasm.protocol.generation import GenerateRequest, TextPrompt
from chiasm.protocol.wire import decode_request, encode_request
from chiasm.routing.adapters import load_everywhere, unload_everywhere
from chiasm.routing.coverage.prefixes import prefixes_of

REF = AdapterRef(name="mine", revision="a" * 32, directory="/srv/a")
LOAD = AdapterLoad(name="mine", directory="/srv/a")


class Speaker:
    """A worker of a fleet; `outcome` is the revision that it finds, or what it raises."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.loaded = []

    async def load_adapter(self, load, timeout_s):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        ref = AdapterRef(name=load.name, revision=self.outcome, directory=load.directory)
        self.loaded.append(ref)
        return AdapterInfo(ref=ref, rank=4, targets=("q_proj",), num_bytes=len(self.loaded))

    async def unload_adapter(self, ref, timeout_s):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        self.loaded = [one for one in self.loaded if one != ref]


class Info:
    def __init__(self, *, takes_adapters=True):
        self.takes_adapters = takes_adapters


class Member:
    def __init__(self, name, worker, **info):
        self.name = name
        self.worker = worker
        self.info = Info(**info)


class Fleet:
    """Members by role."""

    def __init__(self, prefill, decode):
        self.roles = {"prefill": prefill, "decode": decode}

    def with_role(self, role):
        return self.roles[role]


def fleet(*outcomes):
    """A fleet whose first member plays both roles."""
    members = [Member(f"w{number}", Speaker(outcome)) for number, outcome in enumerate(outcomes)]
    return Fleet(members[:1], members), [member.worker for member in members]


async def test_every_member_loads_it_once():
    where, workers = fleet("a" * 32, "a" * 32, "a" * 32)
    assert (await load_everywhere(where, LOAD, 1)).ref == REF
    assert [worker.loaded for worker in workers] == [[REF]] * 3
    await unload_everywhere(where, REF, 1)
    assert [worker.loaded for worker in workers] == [[]] * 3


@pytest.mark.parametrize("third", [AdapterError("no"), "b" * 32, EngineDeadError("gone")])
async def test_none_keeps_what_not_all_have(third):
    where, workers = fleet("a" * 32, "a" * 32, third)
    with pytest.raises((AdapterError, EngineDeadError)):
        await load_everywhere(where, LOAD, 1)
    assert [worker.loaded for worker in workers] == [[]] * 3


async def test_members_that_know_no_adapters_and_fleets_without_members_say_so():
    where, _ = fleet("a" * 32)
    where.roles["decode"].append(Member("old", Speaker("a" * 32), takes_adapters=False))
    with pytest.raises(UnsupportedFeatureError, match="old"):
        await load_everywhere(where, LOAD, 1)
    with pytest.raises(EngineDeadError):
        await load_everywhere(Fleet([], []), LOAD, 1)


def request(adapter=None):
    return GenerateRequest(request_id="r", prompt=TextPrompt("x" * 2000), adapter=adapter)


def test_starts_of_prompts_are_known_by_their_adapter():
    other = AdapterRef(name="mine", revision="b" * 32, directory="/srv/a")
    keys = [{prefix.key for prefix in prefixes_of(request(one))} for one in (None, REF, other)]
    assert not keys[0] & keys[1]
    assert not keys[1] & keys[2]
    renamed = AdapterRef(name="another", revision=REF.revision, directory="/elsewhere")
    assert keys[1] == {prefix.key for prefix in prefixes_of(request(renamed))}, "the same files under another name"


@pytest.mark.parametrize("adapter", [None, REF])
def test_a_request_carries_its_adapter_over_the_wire(adapter):
    call = encode_request(request(adapter), "base")
    assert decode_request(call.path, call.body).adapter == adapter
    assert (b'"model":"mine"' in call.body) is (adapter is not None)
