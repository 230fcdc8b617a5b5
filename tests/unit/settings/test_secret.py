"""Secrets apart from the rest."""

import pytest

from chiasm.settings import resolve
from chiasm.settings.secret import secrets_of, without_secrets
from chiasm.settings.sources import SECRET_FIELDS

VALUES = {"gateway.api_keys": ["k"], "gateway.admin_keys": ["k"], "media.proxy": "http://u:p@proxy.example:3128"}


def test_only_what_is_set_is_a_secret_that_must_be_elsewhere_too():
    assert secrets_of(resolve(environment={}).settings) == {}
    values = {"routing.worker_token": "t", "gateway.api_keys": ["k"]}
    assert secrets_of(resolve(values=values, environment={}).settings) == {
        "gateway.api_keys": ("k",),
        "routing.worker_token": "t",
    }


@pytest.mark.parametrize("name", sorted(SECRET_FIELDS))
def test_every_secret_can_be_left_out(name):
    value = VALUES.get(name, "secret")
    settings = resolve(values={name: value, "gateway.port": 9}, environment={}).settings
    assert secrets_of(settings)
    assert without_secrets(settings) == resolve(values={"gateway.port": 9}, environment={}).settings
