"""Adapters of the packaged model for the servers of tests, and an operator's calls about them."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText

from tests.numeric.adapters import write_adapter
from tests.vllm.crews import OPERATOR
from tests.vllm.servers import MODEL


def write_adapters(folder: Path) -> Path:
    """Folders 'first' and 'later'."""
    model = AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.float32)
    for seed, name in enumerate(("first", "later")):
        write_adapter(model, folder / name, seed, rank=8)
    return folder


def options(root: Path) -> tuple[str, ...]:
    """Settings of a gateway whose operator may load them; 'first' is there from the start."""
    return (f'adapters.roots=["{root}"]', f'adapters.preload=["first={root}/first"]', "adapters.max_rank=8")


def operate(server, method, path="", body=None):
    """Status and answer of an operator's call."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {OPERATOR}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.address}/admin/adapters{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def said(server, parts, model):
    """What a model or adapter answers, greedy."""
    status, body = server.chat(parts, model=model, max_tokens=12)
    assert status == 200, body
    assert body["model"] == model
    return body["choices"][0]["message"]["content"]
