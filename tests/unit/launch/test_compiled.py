"""Which compiled code there is, said in a line when a server starts."""

import importlib
import logging

import pytest

from chiasm.launch import compiled
from chiasm.settings import EngineSettings, Settings

MODELS, PICTURES = "chiasm.engines.embedded.decoder._native", "chiasm.media.kernels._native"


class Built:
    """An extension that is there."""

    def names(self):
        return ["avx2", "generic"]

    def kernels_for(self, head_dim, name):
        return "avx512"


@pytest.fixture
def without(monkeypatch):
    def leave_out(*missing):
        def import_module(name):
            if name in missing:
                raise ImportError(name)
            return Built()

        monkeypatch.setattr(importlib, "import_module", import_module)

    return leave_out


@pytest.mark.parametrize(
    ("missing", "engine", "level", "line"),
    [
        ((), {}, "INFO", "Compiled code: pictures native (avx2), models native (avx512)"),
        ((MODELS,), {}, "WARNING", "pictures native (avx2), models by torch. Install a C compiler (GCC 8 or newer)"),
        ((PICTURES,), {}, "WARNING", "pictures by Pillow and numpy, models native (avx512). Install a C compiler"),
        ((MODELS,), {"kind": "vllm"}, "INFO", "Compiled code: pictures native (avx2)"),
        ((MODELS,), {"decoder": "torch"}, "INFO", "Compiled code: pictures native (avx2)"),
    ],
)
def test_a_line_says_what_is_native_and_what_to_do_about_the_rest(without, caplog, missing, engine, level, line):
    without(*missing)
    with caplog.at_level(logging.INFO):
        compiled.log_compiled(Settings(engine=EngineSettings(**engine)))
    (record,) = caplog.records
    assert (record.levelname, line in record.getMessage()) == (level, True)


def test_code_that_is_not_for_this_processor_is_not_native(without, monkeypatch):
    without()
    monkeypatch.setattr(Built, "kernels_for", lambda *_: "")
    assert compiled.model_code().kernels is None
