"""Gateway and worker of different versions of the contract meet over HTTP."""

from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from chiasm.errors import ContractVersionError
from chiasm.launch.server import address_of
from chiasm.protocol.contract import CONTRACT_HEADER, CONTRACT_VERSION, UNSAID_VERSION
from chiasm.protocol.deletion import FORGET_PATH, Deletion
from chiasm.protocol.generation import GenerateRequest, RequestFinished, TextPrompt
from chiasm.protocol.wire import SUPPLY_PATH, encode_request
from chiasm.routing.remote import RemoteWorker
from chiasm.routing.remote import worker as gateway_side
from tests.fakes import FakeWorker
from tests.integration.worker_contract.servers import listener, served


@asynccontextmanager
async def worker_at(folder, worker=None):
    """Where a worker's server listens."""
    socket = listener("tcp", folder)
    async with served(worker or FakeWorker(), socket):
        yield address_of(socket)


def of_version(version):
    """A worker that says another version than ours, as an old server would: whatever it is asked."""
    worker = FakeWorker()
    worker.info = msgspec.structs.replace(worker.info, version=version)
    return worker


async def info_for(address, headers):
    async with aiohttp.ClientSession() as http, http.get(f"{address}/info", headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("said", "answered"),
    [(None, 1), (CONTRACT_VERSION - 1, CONTRACT_VERSION - 1), (CONTRACT_VERSION + 1, CONTRACT_VERSION)],
)
async def test_a_worker_answers_a_neighbour_in_the_older_version(said, answered, tmp_path):
    async with worker_at(tmp_path) as address:
        status, body = await info_for(address, {} if said is None else {CONTRACT_HEADER: str(said)})
    assert (status, body["version"]) == (200, answered)


async def test_a_worker_refuses_a_gateway_that_is_too_new(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway_side, "CONTRACT_VERSION", CONTRACT_VERSION + 2)
    async with worker_at(tmp_path) as address:
        with pytest.raises(ContractVersionError) as caught:
            await RemoteWorker.connect(address)
    assert "Upgrade this worker first" in caught.value.hint


async def test_a_gateway_refuses_a_worker_that_is_too_old(tmp_path, monkeypatch):
    monkeypatch.setattr("chiasm.workers.server.app.version_to_speak", lambda said: CONTRACT_VERSION - 2)
    async with worker_at(tmp_path) as address:
        with pytest.raises(ContractVersionError) as caught:
            await RemoteWorker.connect(address)
    assert "Upgrade worker 'local' first" in caught.value.hint


async def test_an_older_worker_is_called_in_its_version(tmp_path, monkeypatch):
    monkeypatch.setattr("chiasm.workers.server.app.version_to_speak", lambda said: CONTRACT_VERSION - 1)
    calls = []

    def noted(*args):
        calls.append(encode_request(*args))
        return calls[-1]

    monkeypatch.setattr(gateway_side, "encode_request", noted)
    async with worker_at(tmp_path) as address:
        worker = await RemoteWorker.connect(address)
        request = GenerateRequest(request_id="r", prompt=TextPrompt("hello you"), timeout_s=30.0)
        events = [event async for event in worker.generate(request)]
        await worker.aclose()
    assert isinstance(events[-1], RequestFinished)
    assert [msgspec.json.decode(call.body)["chiasm"].get("version", UNSAID_VERSION) for call in calls] == [
        CONTRACT_VERSION - 1
    ]


async def test_calls_of_no_neighbour_are_refused_with_a_code(tmp_path):
    deletion = msgspec.structs.replace(Deletion(cache_salt=""), version=99)
    calls = {FORGET_PATH: msgspec.json.encode(deletion), SUPPLY_PATH: b'{"request_id":"r","handles":{},"version":99}'}

    class Complete(FakeWorker):
        async def forget(self, deletion, timeout_s):
            raise AssertionError("it was refused")

        async def supply(self, request):
            raise AssertionError("it was refused")

    worker = Complete()
    worker.info = msgspec.structs.replace(worker.info, takes_late_embeddings=True)
    async with worker_at(tmp_path, worker) as address, aiohttp.ClientSession() as http:
        for path, body in calls.items():
            async with http.post(address + path, data=body) as answer:
                assert answer.status == 500
                assert (await answer.json())["error"]["code"] == "contract_version_mismatch"
