"""The checks of `chiasm doctor`, each with something wrong."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from chiasm.cli import checks
from chiasm.cli.app import app
from chiasm.cli.checks import Check
from chiasm.errors import EngineStartError
from chiasm.launch.compiled import Part
from chiasm.launch.server import bind
from chiasm.settings import EngineSettings, Settings


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("torch==2.13.0; extra == 'embedded'", None),
        ("torch==2.13; extra == 'embedded'", None),
        ("torch==2.12.0", "torch 2.13.0+cpu is installed, ==2.12.0 is required"),
        ("torch>=2.9", None),
        ("torch>=2.14", "torch 2.13.0+cpu is installed, >=2.14 is required"),
        ("torch<3,>=2.13", None),
        ("torch<2.13,>=2", "torch 2.13.0+cpu is installed, <2.13,>=2 is required"),
        ("torch", None),
        ("no-such-package>=1", "no-such-package is missing"),
        ("no-such-package[x]>=1", "no-such-package is missing"),
    ],
)
def test_package_versions(monkeypatch, requirement, problem):
    installed = {"torch": "2.13.0+cpu"}

    def version(name):
        if name not in installed:
            raise checks.PackageNotFoundError
        return installed[name]

    monkeypatch.setattr(checks, "version", version)
    assert checks.package_problem(requirement) == problem


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(checks, "requires", lambda _: ["torch==1; extra == 'embedded'", "msgspec>=0.19"])
    base, embedded = checks._packages(is_embedded=True)
    assert base.status == "ok"
    assert (embedded.status, embedded.fix) == ("fail", "pip install 'chiasm[embedded]'")


def test_a_taken_port():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        settings = Settings()
        gateway = msgspec.structs.replace(settings.gateway, port=listener.getsockname()[1])
        found = checks._port(msgspec.structs.replace(settings, gateway=gateway))
    assert found.status == "fail"
    assert "--port" in found.fix


def test_the_answer_is_judged_only_for_the_packaged_model():
    assert checks._judged("The color is Red.", is_packaged=True).status == "ok"
    assert checks._judged("blue", is_packaged=True).status == "fail"
    assert checks._judged("blue", is_packaged=False).status == "ok"


def test_a_model_that_does_not_load_is_a_failed_check(monkeypatch):
    def fail(*_):
        raise EngineStartError("no weights", hint="get some")

    monkeypatch.setattr("chiasm.launch.local.start_worker", fail)
    (found,) = checks._answer(Settings())
    assert (found.status, found.detail, found.fix) == ("fail", "no weights", "get some")


def test_a_broken_package_is_a_failed_check(monkeypatch):
    def fail(*_):
        raise ImportError("libtorch.so: undefined symbol")

    monkeypatch.setattr("chiasm.launch.local.start_worker", fail)
    monkeypatch.setattr("chiasm.launch.engine.packing_works", fail)
    (found,) = checks._answer(Settings())
    assert (found.status, "reinstall" in found.fix) == ("fail", True)
    assert checks._decoder(Settings()).status == "warn"


@pytest.mark.parametrize(
    ("kernels", "decoder", "status", "detail"),
    [
        ("avx2", "auto", "ok", "native (avx2)"),
        ("avx2", "torch", "ok", "torch, packed weights"),
        (None, "torch", "ok", "torch, packed weights"),
        (None, "auto", "warn", "torch, packed weights: the native one"),
        (None, "native", "fail", "torch, packed weights: the native one"),
    ],
)
def test_the_decoder_is_named_and_a_missing_one_explained(monkeypatch, kernels, decoder, status, detail):
    monkeypatch.setattr("chiasm.launch.engine.native_kernels", lambda: kernels)
    monkeypatch.setattr("chiasm.launch.engine.packing_works", lambda _: True)
    found = checks._decoder(Settings(engine=EngineSettings(decoder=decoder)))
    assert (found.status, found.detail[: len(detail)]) == (status, detail)
    assert (found.fix is None) == (status == "ok")


def test_without_its_packages_the_model_is_not_tried(monkeypatch):
    monkeypatch.setattr(checks, "_packages", lambda is_embedded: iter([Check("packages", "fail", "torch is missing")]))
    monkeypatch.setattr(checks, "_answer", lambda _: pytest.fail("tried"))
    monkeypatch.setattr(checks, "_decoder", lambda _: pytest.fail("tried"))
    assert [check.status for check in checks.run_checks(Settings())].count("fail") >= 1


@pytest.mark.parametrize("status", ["ok", "warn", "fail"])
def test_the_command_prints_and_reports(monkeypatch, status):
    monkeypatch.setattr(checks, "run_checks", lambda _: iter([Check("thing", status, "detail", "do this")]))
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == (1 if status == "fail" else 0)
    assert "thing: detail" in shown.stdout
    assert "-> do this" in shown.stdout
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    assert json.loads(shown.stdout) == [{"name": "thing", "status": status, "detail": "detail", "fix": "do this"}]


def test_the_machine_is_described():
    assert checks._cpu().detail
    assert checks._memory().detail
    assert "Python" in checks._python().detail


def test_pictures_without_compiled_code_are_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr("chiasm.launch.compiled.picture_code", lambda: Part("pictures", "avx2", "Pillow and numpy"))
    assert checks._pictures() == Check("pictures", "ok", "native (avx2)")
    monkeypatch.setattr("chiasm.launch.compiled.picture_code", lambda: Part("pictures", None, "Pillow and numpy"))
    found = checks._pictures()
    assert (found.status, found.detail.startswith("Pillow and numpy: ")) == ("warn", True)
    assert "GCC 8" in found.fix
