"""Pooling workers around directories, and Hugging Face's own numbers for the same texts."""

import asyncio
from contextlib import contextmanager

import numpy as np
import torch

from chiasm.launch.pooling import start_pooling_worker
from chiasm.protocol.pooling.work import PoolParams, PoolRequest
from chiasm.settings import resolve

TEXTS = [
    "Hello world",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "",
    "Hello world",
    "Ünïcode, emoji \U0001f600 and 漢字",
    "a b c d e f g h i j k l m n o p",
    "one two three four",
]


class Served:
    """A worker without HTTP."""

    def __init__(self, worker):
        self.worker = worker

    def pool(self, task, inputs, **params):
        """Outputs of one request."""
        request = PoolRequest(request_id="t", task=task, inputs=tuple(inputs), params=PoolParams(**params))
        return asyncio.run(self.worker.pool(request)).outputs

    def values(self, task, inputs, **params):
        """Their numbers."""
        return [output.values for output in self.pool(task, inputs, **params)]


@contextmanager
def served(directory, **settings):
    """A worker for a directory; settings are section__field."""
    overrides = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    resolved = resolve(environment={}, overrides=[f"engine.model={directory}", "engine.threads=1", *overrides]).settings
    worker = start_pooling_worker(resolved, lambda what, share: None)
    try:
        yield Served(worker)
    finally:
        asyncio.run(worker.aclose())


@torch.no_grad()
def hidden_states(model, tokenizer, *texts):
    """Last hidden states [tokens, hidden_size] of one text or pair, computed by itself."""
    return model(**tokenizer(*texts, return_tensors="pt")).last_hidden_state[0]


def unit(row):
    """A row of length one."""
    return row / np.linalg.norm(row)
