"""What servers that Chiasm started print."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE_S = 20.0
_ENCODER_RAN = "Finish execute for mm hash"


class Log(logging.Handler):
    """What servers that Chiasm started print."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())

    def encoded_by(self, worker: str) -> int:
        """How often a server's encoder ran."""
        return sum(line.startswith(f"{worker}: ") and _ENCODER_RAN in line for line in self.lines)

    def sees_encoding_by(self, worker: str, after: int) -> bool:
        """Wait until a server's encoder has run more often than that; False when it has not in time.

        What a server prints comes through a pipe, often after its answer.
        """
        deadline_s = time.monotonic() + _PATIENCE_S
        while (found := self.encoded_by(worker)) <= after and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return found > after


@contextmanager
def heard() -> Iterator[Log]:
    """Keep what servers print while the block runs."""
    log, logger = Log(), logging.getLogger("chiasm.launch.vllm.process")
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    try:
        yield log
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
