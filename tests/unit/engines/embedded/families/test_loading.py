"""Weights that cannot be read are the directory's fault; threads that cannot be started are not."""

from pathlib import Path

import pytest
import torch

from chiasm.engines.embedded.families.loading import read_weights
from chiasm.errors import EngineStartError


class Failing:
    """A model class that cannot be read from anything."""

    def __init__(self, error):
        self._error = error

    def from_pretrained(self, *_args, **_options):
        raise self._error


def test_a_directory_without_weights_is_named():
    with pytest.raises(EngineStartError, match="cannot load the weights of m: no file"):
        read_weights(Failing(OSError("no file")), Path("/srv/m"), None, torch.float32)


def test_a_thread_that_the_system_refuses_is_not_taken_for_broken_weights():
    with pytest.raises(RuntimeError, match="can't start new thread"):
        read_weights(Failing(RuntimeError("can't start new thread")), Path("/srv/m"), None, torch.float32)
