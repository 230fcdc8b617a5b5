"""Numbers of workers that a topology does not have are refused instead of ignored."""

import pytest

from chiasm.cli.counts import check_counts
from chiasm.errors import InvalidSettingError
from chiasm.settings import resolve


def settings(topology, engine="embedded"):
    return resolve(values={"routing.topology": topology, "engine.kind": engine}).settings


@pytest.mark.parametrize(
    ("topology", "kind"),
    [("local", "encoders"), ("local", "workers"), ("agg", "encoders"), ("e-pd", "decodes"), ("e-p-d", "workers")],
)
def test_a_number_that_would_do_nothing_is_refused(topology, kind):
    with pytest.raises(InvalidSettingError, match=f"--{kind} 0 is without effect") as caught:
        check_counts(settings(topology), {kind: 0})
    assert "--topology" in caught.value.hint


@pytest.mark.parametrize(
    ("topology", "engine", "kinds"),
    [
        ("auto", "embedded", ["workers"]),
        ("auto", "vllm", ["workers", "encoders"]),
        ("e-pd", "embedded", ["encoders", "prefills"]),
        ("e-p-d", "vllm", ["encoders", "prefills", "decodes"]),
    ],
)
def test_those_that_it_has_are_taken(topology, engine, kinds):
    check_counts(settings(topology, engine), dict.fromkeys(kinds, 3) | {"other": None})


@pytest.mark.parametrize("kind", ["workers", "encoders", "prefills", "decodes"])
def test_a_number_beside_a_file_of_workers_is_refused(kind):
    settings = resolve(
        values={"routing.topology": "e-p-d", "engine.kind": "vllm", "vllm.workers_file": "workers.toml"}
    ).settings
    with pytest.raises(InvalidSettingError, match=f"--{kind} 2 is without effect: workers.toml names") as caught:
        check_counts(settings, {kind: 2})
    assert "in the file" in caught.value.hint
    check_counts(settings, {kind: None})
