"""docs/http_api.md says what the code does."""

import json
import re
from pathlib import Path

import pytest

from chiasm.gateway.openai.chat import _ROLES
from chiasm.gateway.routes.openapi import DESCRIBED_PATHS
from chiasm.protocol.openai.chat import ChatCompletionRequest
from chiasm.protocol.openai.completions import CompletionRequest
from chiasm.protocol.openai.fields import CHAT_POLICY, COMPLETION_POLICY, Accepted, Refused

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "http_api.md").read_text("utf-8")
RULES = {**COMPLETION_POLICY, **CHAT_POLICY}


def rows(heading):
    section = PAGE.split(f"### {heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell):
    return re.findall(r"`([\w./{}?=-]+)`", cell)


def test_honoured_fields():
    written = {name for row in rows("Honoured") for name in names(row[0])}
    assert written == {*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__}


def test_accepted_fields():
    written = {names(row[0])[0]: row[1] for row in rows("Accepted without effect")}
    assert written == {name: rule.why for name, rule in RULES.items() if isinstance(rule, Accepted)}


def test_refused_fields():
    written = {names(row[0])[0]: (row[1], row[2]) for row in rows("Refused unless neutral")}
    assert written == {
        name: (", ".join(f"`{json.dumps(value)}`" for value in rule.neutral), rule.hint)
        for name, rule in RULES.items()
        if isinstance(rule, Refused)
    }


def test_rules_that_both_apis_have_are_the_same():
    assert all(CHAT_POLICY[name] == COMPLETION_POLICY[name] for name in set(CHAT_POLICY) & set(COMPLETION_POLICY))


def test_paths():
    table = PAGE.split("| path |")[1].split("\n\n")[0]
    written = {name.split("?")[0] for line in table.splitlines()[2:] for name in names(line.split("|")[1])}
    assert written == set(DESCRIBED_PATHS)


@pytest.mark.parametrize("role", _ROLES)
def test_roles(role):
    assert f"`{role}`" in PAGE


def test_json_examples_are_json():
    for block in re.findall(r"^```json\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        assert json.loads(block)
