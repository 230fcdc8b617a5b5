"""What every suite shares. The hub is closed before any test can import transformers: no test may download."""

import logging
import os

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

settings.register_profile("loaded machine", deadline=None)
settings.load_profile("loaded machine")


@pytest.fixture(autouse=True)
def restored_loggers():
    """Commands configure logging for their process: what one test's command did must not silence another's lines."""
    loggers = [logging.getLogger(name) for name in ("chiasm", "uvicorn")]
    states = [(one.level, one.handlers[:], one.propagate) for one in loggers]
    yield
    for one, (level, handlers, propagate) in zip(loggers, states, strict=True):
        one.setLevel(level)
        one.handlers = handlers
        one.propagate = propagate
