"""What every suite shares. The hub is closed before any test can import transformers: no test may download."""

import logging
import os

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

settings.register_profile("loaded machine", deadline=None)
settings.load_profile("loaded machine")


def _loggers():
    ours = [one for name, one in logging.root.manager.loggerDict.items() if name.startswith(("chiasm", "uvicorn"))]
    return [one for one in ours if isinstance(one, logging.Logger)]


@pytest.fixture(autouse=True)
def restored_loggers():
    """Commands configure logging for their process: what one test's command did must not silence another's lines."""
    states = {one: (one.level, one.handlers[:], one.propagate) for one in _loggers()}
    yield
    for one in _loggers():
        level, one.handlers, one.propagate = states.get(one, (logging.NOTSET, [], True))
        if one.level != level:
            one.setLevel(level)
