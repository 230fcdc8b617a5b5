"""What every suite shares. The hub is closed before any test can import transformers: no test may download."""

import logging
import os
import signal

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# `make test ARGS="-k name"` hands its own options down to every make that a test starts as its user would.
for name in ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    os.environ.pop(name, None)
# A shell that starts tests in the background has them, and all that they start, ignore Ctrl+C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("loaded machine", deadline=None)
settings.load_profile("loaded machine")


def pytest_terminal_summary(terminalreporter):
    """Say why a test failed that passed when it ran again, which the plugin leaves out: it is a race to be mended."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"rerun: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


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
