"""Deletion through a worker's HTTP server."""

import aiohttp
import pytest

from chiasm.errors import ChiasmError, EngineDeadError, EngineError, InvalidRequestError
from chiasm.protocol.deletion import FORGET_PATH, Deleted, Deletion
from tests.fakes import FakeWorker
from tests.integration.worker_contract.servers import CARRIERS, listener, remote, served

ANSWER = (Deleted(worker="w", num_blocks=3),)


class ForgetfulWorker(FakeWorker):
    """Notes what it is to forget."""

    def __init__(self, answer=ANSWER):
        super().__init__()
        self.answer = answer
        self.deletions = []

    async def forget(self, deletion, timeout_s):
        self.deletions.append(deletion)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_deletion_and_its_answer_cross_unchanged(carrier, tmp_path):
    worker = ForgetfulWorker()
    sent = [Deletion(identity="a" * 64), Deletion(cache_salt=""), Deletion(identity="b" * 64, cache_salt="ours")]
    async with remote(worker, carrier, tmp_path, token="secret") as (app, client):
        for deletion in sent:
            assert await client.forget(deletion, 30.0) == worker.answer
        app.drain()
        assert await client.forget(sent[0], 30.0) == worker.answer, "also while it drains"
    assert worker.deletions == [*sent, sent[0]]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(EngineDeadError("gone"), EngineDeadError), (ZeroDivisionError(), ChiasmError)],
)
async def test_what_goes_wrong_is_told(raised, kind, tmp_path):
    async with remote(ForgetfulWorker(raised), "unix", tmp_path) as (_, client):
        with pytest.raises(kind):
            await client.forget(Deletion(cache_salt=""), 30.0)


@pytest.mark.parametrize("deletion", [Deletion(), Deletion(identity="short"), Deletion(cache_salt="x" * 20_000)])
async def test_what_is_no_deletion_is_refused(deletion, tmp_path):
    worker = ForgetfulWorker()
    async with remote(worker, "unix", tmp_path) as (_, client):
        with pytest.raises(ChiasmError) as caught:
            await client.forget(deletion, 30.0)
        assert caught.value.code in (InvalidRequestError.code, "request_too_large")
    assert not worker.deletions


async def test_an_answer_that_is_none_is_an_error_of_the_worker(tmp_path):
    async with remote(ForgetfulWorker({"what": "?"}), "unix", tmp_path) as (_, client):
        with pytest.raises(EngineError):
            await client.forget(Deletion(cache_salt=""), 30.0)


async def test_only_those_with_the_token_may_and_only_of_workers_that_can():
    socket, worker = listener("tcp", None), ForgetfulWorker()
    port = socket.getsockname()[1]
    async with served(worker, socket, token="secret"), aiohttp.ClientSession() as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with http.post(f"http://127.0.0.1:{port}{FORGET_PATH}", data=b"{}", headers=headers) as made:
                assert made.status == 401
    assert not worker.deletions
    socket = listener("tcp", None)
    port = socket.getsockname()[1]
    url = f"http://127.0.0.1:{port}{FORGET_PATH}"
    async with (
        served(FakeWorker(), socket),
        aiohttp.ClientSession() as http,
        http.post(url, data=b'{"cache_salt":""}') as made,
    ):
        assert made.status == 404
