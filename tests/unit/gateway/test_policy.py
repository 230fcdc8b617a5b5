"""The policy says what the settings come to, and nothing that is secret."""

import msgspec
import pytest

from chiasm.gateway.policy import policy_of
from chiasm.settings import Settings, resolve

_SECRET = "sk-very-secret-value"


def policy(*overrides):
    return policy_of(resolve(environment={}, overrides=overrides).settings)


def rule(made, about):
    return next(one for one in made.rules if one.about == about)


def test_limits_have_the_settings_values_and_meanings():
    limits = {one.setting: one for one in policy("media.max_items=3").limits}
    assert limits["media.max_items"].value == 3
    assert all(one.meaning for one in limits.values())
    assert {"gateway.max_body_bytes", "gateway.request_timeout_s", "media.max_item_pixels"} <= limits.keys()


@pytest.mark.parametrize(
    ("override", "about", "is_open", "says"),
    [
        ("gateway.port=1", "callers", True, "need no key"),
        (f"gateway.api_keys=['{_SECRET}']", "callers", False, "need a key"),
        ("gateway.host=0.0.0.0", "network", True, "every address"),
        ("media.allowed_domains=['example.org']", "media by URL", False, "example.org; https alone"),
        ("media.port=1", "media by URL", False, "refused"),
        ("media.allowed_private_hosts=['inner.example']", "private addresses", False, "1 named hosts"),
        ("media.decoder=processes", "decoding", False, "without harm"),
        ("routing.topology=agg", "workers", False, "this machine alone"),
        ("routing.port=1", "workers", False, "in the server's process"),
        ("engine.kind=vllm", "workers", False, "no other user"),
        ("engine.kind=vllm vllm.workers_file=workers.toml", "workers", True, "without a token"),
        (f"engine.kind=vllm vllm.workers_file=w.toml routing.worker_token={_SECRET}", "workers", False, "with a token"),
    ],
)
def test_rules_follow_the_settings(override, about, is_open, says):
    overrides = [] if override in ("media.port=1", "routing.port=1") else override.split(" ")
    found = rule(policy(*overrides), about)
    assert found.is_open == is_open
    assert says in found.says


def test_traces_are_among_what_is_kept_when_they_are_made():
    assert "traces" not in {one.what for one in policy().kept}
    assert "traces" in {one.what for one in policy("observability.otlp_endpoint=http://inner:4318").kept}


def test_nothing_secret_is_said():
    made = policy(
        f"gateway.api_keys=['{_SECRET}']",
        f"gateway.admin_keys=['{_SECRET}2']",
        f"routing.worker_token={_SECRET}3",
        "gateway.audit_file=/var/log/inner/audit.log",
        "media.allowed_domains=['inner.example', 'example.org']",
        "media.allowed_private_hosts=['inner.example']",
        "media.allowed_root=/srv/inner",
    )
    text = msgspec.json.encode(made).decode()
    assert _SECRET not in text
    assert "inner" not in text
    assert policy_of(Settings()).kept
