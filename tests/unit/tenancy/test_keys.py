"""Keys: hashed at rest, followed without a restart, and a broken file breaks nothing."""

import datetime
import os
import stat
import time

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import InvalidSettingError
from chiasm.settings import GatewaySettings
from chiasm.tenancy.edit import new_key, revoke_key
from chiasm.tenancy.file import parse_keys_file, read_keys_file
from chiasm.tenancy.keys import SCOPES, Caller, KeyRing, callers_of_settings, digest_of
from chiasm.tenancy.tenants import Tenants
from chiasm.tenancy.watch import reload_keys_file, watch_keys_file
from tests.conditions import until

ENTRY = """
[[keys]]
id = "k1"
tenant = "acme"
sha256 = "{digest}"
scopes = ["infer"]
created = 2026-01-01T00:00:00Z
"""
GOOD = "[tenants.acme]\n" + ENTRY.format(digest=digest_of(b"secret").hex())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.toml"


def test_a_key_is_found_by_its_hash_and_no_other_is():
    ring = KeyRing(callers_of_settings(["first", ""], ["operator"]))
    assert ring.find(b"first").scopes == SCOPES - {"admin"}
    assert ring.find(b"operator").scopes == {"admin"}
    assert [ring.find(key) for key in (b"", b"firs", b"first1", b"FIRST", digest_of(b"first"))] == [None] * 5


def test_an_expired_key_opens_nothing():
    def ring(expires_at_s):
        return KeyRing({digest_of(b"k"): Caller("id", "t", SCOPES, expires_at_s)})

    assert ring(time.time() + 60).find(b"k") is not None
    assert ring(time.time() - 1).find(b"k") is None


def test_the_file_keeps_a_hash_and_nobody_else_reads_it(path):
    key = new_key(path, "acme", ["infer"])
    text = path.read_text()
    assert key not in text
    assert key.split("-", 2)[2] not in text
    assert digest_of(key.encode()).hex() in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (entry,) = read_keys_file(path).keys
    assert (entry.tenant, entry.scopes, entry.expires) == ("acme", ("infer",), None)
    assert KeyRing(read_keys_file(path).callers()).find(key.encode()).key_id == entry.id


def test_comments_limits_and_other_keys_stay_when_one_is_revoked(path):
    path.write_text("# ours\n[defaults]\nmax_tokens_per_minute = 5 # few\n" + GOOD)
    new_key(path, "other", ["admin"], datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))
    revoke_key(path, "k1")
    text = path.read_text()
    assert "# ours" in text
    assert "# few" in text
    file = read_keys_file(path)
    assert [(key.tenant, key.expires.year) for key in file.keys] == [("other", 2030)]
    assert file.limits_of("other").max_tokens_per_minute == 5
    with pytest.raises(InvalidSettingError, match="no key 'k1'"):
        revoke_key(path, "k1")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[tenants", "not TOML"),
        (ENTRY.format(digest="0" * 64), "has no table"),
        (GOOD + ENTRY.format(digest="1" * 64), "there twice"),
        (GOOD + ENTRY.format(digest=digest_of(b"secret").hex()).replace("k1", "k2"), "there twice"),
        (GOOD.replace('"infer"', '"everything"'), "scopes"),
        (GOOD.replace('["infer"]', "[]"), "scopes"),
        (GOOD.replace("0Z", "0"), "without zone"),
        (GOOD + "typo = 1", "typo"),
        (GOOD.replace("acme]", "acme]\nmax_request_per_minute = 1"), "max_request_per_minute"),
        (GOOD.replace("acme]", "acme]\nmax_requests_per_minute = 0"), "max_requests_per_minute"),
        ("[tenants.0123456789abcdef]", "cannot be called"),
        ("[tenants.anonymous]", "cannot be called"),
        ('[tenants."../x"]', "tenants"),
        (GOOD.replace(digest_of(b"secret").hex(), "secret"), "sha256"),
    ],
)
def test_a_wrong_file_is_refused_and_its_values_not_told(text, what):
    with pytest.raises(InvalidSettingError, match=what) as caught:
        parse_keys_file(text)
    assert digest_of(b"secret").hex() not in caught.value.message
    assert "everything" not in what or "secret" not in caught.value.message


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"["])
def test_a_server_does_not_start_with_a_broken_file(path, content):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidSettingError):
        Tenants(GatewaySettings(keys_file=str(path)))


def test_a_key_may_not_be_in_both_places(path):
    path.write_text(GOOD)
    with pytest.raises(InvalidSettingError, match="settings have, too"):
        Tenants(GatewaySettings(keys_file=str(path), api_keys=("secret",)))


async def test_a_running_server_follows_the_file_and_a_broken_one_changes_nothing(path):
    path.write_text(GOOD)
    tenants, acts = Tenants(GatewaySettings(keys_file=str(path))), []

    async def read():
        assert tenants.has_changed()
        await reload_keys_file(tenants, lambda act, details: acts.append((act, details)))

    assert not tenants.has_changed()
    new = new_key(path, "acme", ["pool"])
    assert tenants.find(new.encode()) is None
    await read()
    assert tenants.find(new.encode()).scopes == {"pool"}
    revoke_key(path, "k1")
    await read()
    assert tenants.find(b"secret") is None
    path.write_text("[broken")
    await read()
    assert "not TOML" in tenants.fault
    assert tenants.find(new.encode()) is not None
    path.unlink()
    await read()
    assert tenants.find(new.encode()) is not None
    path.write_text(GOOD)
    await read()
    assert tenants.fault is None
    assert tenants.find(new.encode()) is None
    assert [act for act, _ in acts] == [
        "keys_file_read", "keys_file_read", "keys_file_refused", "keys_file_refused", "keys_file_read"
    ]  # fmt: skip
    assert acts[1][1] == {"added": [], "removed": ["k1"]}
    assert new not in repr(acts)


async def test_the_watcher_sees_changes_and_outlives_a_full_disk(path, monkeypatch):
    import asyncio

    monkeypatch.setattr("chiasm.tenancy.watch.INTERVAL_S", 0.01)
    path.write_text(GOOD)
    tenants = Tenants(GatewaySettings(keys_file=str(path)))

    def record(act, details):
        raise OSError(28, "No space left on device")

    watching = asyncio.create_task(watch_keys_file(tenants, record))
    for _ in range(2):
        key = new_key(path, "acme", ["infer"])
        await until(lambda key=key: tenants.find(key.encode()))
    watching.cancel()


def test_the_commands_make_list_and_revoke(path):
    def run(*arguments):
        return CliRunner().invoke(app, ["keys", *arguments, "--file", str(path)])

    made = run("new", "acme", "--scope", "infer", "--scope", "metrics", "--expires", "30d")
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    listed = run("list")
    assert "infer, metrics" in listed.stdout
    assert key not in listed.stdout
    key_id = key.split("-")[1]
    assert run("revoke", key_id).exit_code == 0
    assert key_id not in run("list").stdout
    for wrong in (
        ("new", "UPPER"),
        ("new", "a", "--scope", "root"),
        ("new", "a", "--expires", "soon"),
        ("revoke", "x"),
    ):
        assert isinstance(run(*wrong).exception, InvalidSettingError)
    assert os.listdir(path.parent) == [".keys.toml.lock", "keys.toml"] or len(os.listdir(path.parent)) == 2  # noqa: PTH208 - names only
