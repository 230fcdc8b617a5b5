"""Rooms import downwards only, and the control plane stays free of torch: by contract and by a cold start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, modules, rooms

HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "vllm", "llguidance")
TORCH_FREE_ROOMS = (
    "errors",
    "settings",
    "observability",
    "protocol",
    "sharing",
    "media",
    "cache",
    "asgi",
    "scheduling",
    "gateway",
    "routing",
    "bench",
    "cli",
)


def test_import_contracts_are_kept():
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("room", TORCH_FREE_ROOMS)
def test_importing_all_of_a_control_plane_room_leaves_torch_out(room):
    names = modules(room)
    assert names, f"chiasm.{room} is listed here but does not exist"
    program = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_the_door_to_the_engine_opens_when_it_is_used_and_not_before():
    program = (
        "import sys, types, chiasm\n"
        "assert 'chiasm.llm' not in sys.modules and 'torch' not in sys.modules\n"
        "stand_in = sys.modules['chiasm.llm'] = types.ModuleType('chiasm.llm')\n"
        "stand_in.LLM = object()\n"
        "assert chiasm.LLM is stand_in.LLM\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_room_is_described():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert [room for room in sorted(rooms()) if f"`chiasm.{room}`" not in page] == []
