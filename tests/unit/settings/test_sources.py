"""Where settings come from, which wins, and what is refused."""

import os

import msgspec
import pytest

from chiasm.errors import InvalidSettingError, UnknownSettingError
from chiasm.settings import Settings, resolve
from chiasm.settings.process import (
    ALLOCATOR_VARIABLES,
    THREAD_VARIABLES,
    environment_for_arithmetic,
    prepare_threads,
)


def test_defaults_without_any_source():
    resolved = resolve(environment={})
    assert resolved.settings == Settings()
    assert {source for _, _, source in resolved.rows()} == {"default"}


def test_later_sources_win(tmp_path):
    file = tmp_path / "chiasm.toml"
    file.write_text('[gateway]\nport = 1\nhost = "a"\nkeep_alive_s = 5\nmax_receipts = 7\n')
    resolved = resolve(
        file=file,
        environment={"CHIASM_GATEWAY__PORT": "2", "CHIASM_GATEWAY__HOST": "b", "CHIASM_GATEWAY__KEEP_ALIVE_S": "6"},
        overrides=["gateway.port=3", "gateway.host=c", "gateway.port=4"],
        values={"gateway.port": 5},
    )
    gateway = resolved.settings.gateway
    assert (gateway.port, gateway.host, gateway.keep_alive_s, gateway.max_receipts) == (5, "c", 6, 7)
    sources = {name: source for name, _, source in resolved.rows()}
    assert sources["gateway.port"] == sources["gateway.host"] == "command line"
    assert sources["gateway.keep_alive_s"] == "environment CHIASM_GATEWAY__KEEP_ALIVE_S"
    assert sources["gateway.max_receipts"] == str(file)
    assert sources["gateway.max_body_bytes"] == "default"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gateway.api_keys=['a', 'b']", ("a", "b")),
        ("media.background=[0, 0, 0]", (0, 0, 0)),
        ("media.allow_http=true", True),
        ("gateway.request_timeout_s=3", 3.0),
        ("engine.model=7b", "7b"),
        ("engine.model=/a=b", "/a=b"),
        ('gateway.host="::1"', "::1"),
        ("gateway.host='::1'", "::1"),
        ('gateway.keys_file="k.toml"', "k.toml"),
        ('engine.kind="vllm"', "vllm"),
        ('engine.model="7b', '"7b'),
        ("gateway.store_password=8000", "8000"),
        ("gateway.store_password=[1]", "[1]"),
        ("media.animated=refuse", "refuse"),
    ],
)
def test_texts_are_read_as_the_fields_type(text, value):
    section, field = text.partition("=")[0].split(".")
    assert getattr(getattr(resolve(environment={}, overrides=[text]).settings, section), field) == value


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("gatway.port=1", "Did you mean 'gateway'?"),
        ("gateway.prot=1", "Did you mean 'gateway.port'?"),
        ("gateway.zzzzzz=1", "gateway.host"),
        ("port=1", "gateway"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(override, hint):
    with pytest.raises(UnknownSettingError) as caught:
        resolve(environment={}, overrides=[override])
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gateway.port=70000", r"gateway.port = 70000 \(command line\)"),
        ("gateway.port=many", "gateway.port = 'many'"),
        ("media.animated=all", "media.animated"),
        ("gateway.port", "is not section.field=value"),
    ],
)
def test_bad_values_are_refused_with_their_source(override, message):
    with pytest.raises(InvalidSettingError, match=message):
        resolve(environment={}, overrides=[override])


def test_an_unknown_variable_of_ours_is_refused():
    with pytest.raises(UnknownSettingError):
        resolve(environment={"CHIASM_GATEWAY__PROT": "1"})
    assert resolve(environment={"CHIASM_HOME": "x", "OTHER__X": "y"}).settings == Settings()


@pytest.mark.parametrize("content", ["port = 1", "[gateway", "[gateway]\nprot = 1", "[nowhere]\nx = 1"])
def test_bad_files_are_refused(tmp_path, content):
    file = tmp_path / "chiasm.toml"
    file.write_text(content)
    with pytest.raises((UnknownSettingError, InvalidSettingError)):
        resolve(file=file, environment={})


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidSettingError, match="Cannot read"):
        resolve(file=tmp_path / "none.toml", environment={})


def test_keys_are_never_shown():
    resolved = resolve(environment={}, overrides=["gateway.api_keys=['secret']"])
    assert {name: value for name, value, _ in resolved.rows()}["gateway.api_keys"] == "***"
    with pytest.raises(InvalidSettingError) as caught:
        resolve(environment={}, overrides=["gateway.api_keys=[1, 'secret']"])
    assert "secret" not in caught.value.message


def test_sections_are_frozen_and_strict():
    with pytest.raises(AttributeError):
        Settings().gateway.port = 1
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"gateway": {"prot": 1}}, Settings)


def test_the_variables_of_c_libraries_are_added_once(monkeypatch):
    for name in ALLOCATOR_VARIABLES | THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    environment = environment_for_arithmetic()
    assert environment["MALLOC_MMAP_MAX_"] == "7", "what was set by hand stays"
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "8589934592"
    assert environment["OMP_WAIT_POLICY"] == "passive"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert environment_for_arithmetic() is None


def test_threads_are_told_to_sleep_unless_somebody_said_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    prepare_threads()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    prepare_threads()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
