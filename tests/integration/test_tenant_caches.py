"""A real model behind keys: what a tenant has asked serves that tenant, and counters show no trace of it to another."""

import json
import secrets
import time
import urllib.error
import urllib.request

import pytest

from chiasm.launch.local import background_server
from chiasm.settings import resolve
from chiasm.tenancy.edit import new_key, revoke_key
from tests.e2e.served import ask, fresh

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory):
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def keys(keys_file):
    named = {name: new_key(keys_file, name.rstrip("2"), ["infer"]) for name in ("acme", "acme2", "other")}
    return named | {"operator": new_key(keys_file, "operators", ["admin"])}


@pytest.fixture(scope="module")
def server(keys_file, keys):
    settings = resolve(values={"gateway.port": 0, "gateway.keys_file": str(keys_file)}).settings
    with background_server(settings, lambda what, share: None) as running:
        yield running


@pytest.fixture
def asked(server, keys):
    def call(name, parts):
        body = json.dumps(
            {"messages": ask(*parts), "max_tokens": 2, "temperature": 0, "chiasm": {"receipt": True}}
        ).encode()
        headers = {"Authorization": f"Bearer {keys[name]}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.address}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        receipt = found["chiasm"]["receipt"] if "receipt" in found["chiasm"] else found["chiasm"]
        return (
            found["choices"][0]["message"]["content"],
            found["usage"]["prompt_tokens_details"]["cached_tokens"],
            receipt["num_cached_embeddings"],
        )

    return call


NEW = {  # at each call: the server of a test that runs again knows what it was asked before
    "text": lambda: (secrets.token_hex(8) + " and more words" * 20,),
    "picture": lambda: (fresh("red"), "What is it? " * 10),
}


@pytest.mark.parametrize("kind", NEW)
def test_only_the_tenant_itself_finds_what_it_has_left(asked, kind):
    parts = NEW[kind]()
    first, cached, embeddings = asked("acme", parts)
    assert (cached, embeddings) == (0, 0)
    assert asked("other", parts) == (first, 0, 0), "the same answer, computed from nothing"
    again, cached, _ = asked("acme2", parts)
    assert again == first
    assert cached > 0, "another key of the same tenant shares"


def test_an_embedding_is_found_under_another_question_by_its_tenant_only(asked):
    blue = fresh("blue")
    assert asked("acme", (blue, "What is it?"))[2] == 0
    assert asked("other", ("Look: ", blue, "and tell."))[2] == 0
    assert asked("acme", ("See here: ", blue, "and tell."))[2] == 1


def test_a_deleted_tenant_begins_from_nothing(server, keys, asked):
    parts = ("deleted words again and again " * 10,)
    asked("acme", parts)
    asked("other", parts)
    headers = {"Authorization": f"Bearer {keys['operator']}"}
    request = urllib.request.Request(f"{server.address}/admin/tenants/acme/cache", headers=headers, method="DELETE")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["complete"]
    assert asked("acme", parts)[1] == 0
    assert asked("other", parts)[1] > 0


def test_a_running_server_takes_a_new_key_and_drops_a_revoked_one(server, keys_file):
    key = new_key(keys_file, "acme", ["infer"])

    def status():
        request = urllib.request.Request(f"{server.address}/v1/models", headers={"Authorization": f"Bearer {key}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def until(wanted):
        deadline_s = time.monotonic() + 30
        while (found := status()) != wanted:
            assert time.monotonic() < deadline_s, found
            time.sleep(0.1)

    until(200)
    revoke_key(keys_file, key.split("-")[1])
    until(401)
