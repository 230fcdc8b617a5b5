"""Log lines: one a request, with fields a machine can read. Never payloads, URLs or keys."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from chiasm.observability.receipt import Receipt

LOGGER = logging.getLogger("chiasm")

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]
_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_FIELDS = "chiasm_fields"


def configure_logging(level: Level, form: Format = "text") -> None:
    """Write Chiasm's and the HTTP server's lines to standard error. Called once, by the program, never by a library."""
    sink = logging.StreamHandler(sys.stderr)
    sink.setFormatter(logging.Formatter(_FORMAT) if form == "text" else JsonFormatter())
    for name in ("chiasm", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [sink]
        logger.propagate = False
    LOGGER.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel("WARNING")  # it only repeats what our own lines say better


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, `traceback`; and the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line | getattr(record, _FIELDS, {})).decode()


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
        extra={_FIELDS: _fields(endpoint, receipt)},
    )


def log_refusals(tenant: str, codes: Mapping[str, int]) -> None:
    """Write how many requests of a tenant were not let in since the last such line, by code."""
    counts = " ".join(f"{code}={count}" for code, count in sorted(codes.items()))
    LOGGER.info("refused tenant=%s %s", tenant, counts, extra={_FIELDS: {"tenant": tenant, "refused": dict(codes)}})


def _fields(endpoint: str, receipt: Receipt) -> dict[str, Any]:
    return {
        "request": receipt.request_id,
        "endpoint": endpoint,
        "model": receipt.model,
        "outcome": receipt.outcome,
        "ttft_s": receipt.ttft_s,
        "e2e_s": receipt.e2e_s,
        "stages_s": receipt.stages_s,
        "items": receipt.num_items,
        "prompt_tokens": receipt.num_prompt_tokens,
        "cached_tokens": receipt.num_cached_tokens,
        "output_tokens": receipt.num_output_tokens,
        "path": receipt.route.path if receipt.route else None,
    }
