"""Log lines: one a request, with fields a machine can read. Never payloads, URLs or keys."""

import logging
import sys
from typing import Literal

from chiasm.observability.receipt import Receipt

LOGGER = logging.getLogger("chiasm")

Level = Literal["debug", "info", "warning", "error"]
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def configure_logging(level: Level) -> None:
    """Write Chiasm's and the HTTP server's lines to standard error. Called once, by the program, never by a library."""
    sink = logging.StreamHandler(sys.stderr)
    sink.setFormatter(logging.Formatter(_FORMAT))
    for name in ("chiasm", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [sink]
        logger.propagate = False
    LOGGER.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel("WARNING")  # it only repeats what our own lines say better


def log_receipt(endpoint: str, receipt: Receipt) -> None:
    """Write the line of a request that has ended."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    LOGGER.info(
        "request=%s endpoint=%s outcome=%s ttft_s=%s e2e_s=%.4f items=%d prompt_tokens=%d output_tokens=%d",
        receipt.request_id,
        endpoint,
        receipt.outcome,
        "-" if receipt.ttft_s is None else f"{receipt.ttft_s:.4f}",
        receipt.e2e_s,
        receipt.num_items,
        receipt.num_prompt_tokens,
        receipt.num_output_tokens,
    )
