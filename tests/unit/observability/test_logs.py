"""One line a request."""

import json
import re

from chiasm.observability.logs import LOGGER, configure_logging, log_receipt
from chiasm.observability.receipt import Receipt

RECEIPT = Receipt(
    request_id="r-1", model="m", outcome="finished", ttft_s=0.25, e2e_s=1.5, stages_s={}, unaccounted_s=0, decode_s=0,
    num_items=2, num_prompt_tokens=7, num_output_tokens=3,
)  # fmt: skip


def test_the_line_of_a_request(capsys):
    configure_logging("info")
    log_receipt("chat", RECEIPT)
    line = capsys.readouterr().err
    assert line.endswith(
        "INFO request=r-1 endpoint=chat outcome=finished ttft_s=0.2500 e2e_s=1.5000"
        " items=2 prompt_tokens=7 output_tokens=3\n"
    )


def test_no_first_token_is_a_dash(capsys):
    configure_logging("info")
    log_receipt("chat", Receipt(request_id="r", model="m", outcome="cancelled", ttft_s=None, e2e_s=0, stages_s={},
                                unaccounted_s=0, decode_s=0))  # fmt: skip
    assert "ttft_s=- " in capsys.readouterr().err


def test_the_level_holds(capsys):
    configure_logging("warning")
    log_receipt("chat", RECEIPT)
    LOGGER.warning("seen")
    assert capsys.readouterr().err.endswith("WARNING seen\n")


def test_configuring_twice_writes_once(capsys):
    configure_logging("info")
    configure_logging("info")
    LOGGER.info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_lines_of_json_have_the_requests_fields(capsys):
    configure_logging("info", "json")
    log_receipt("chat", RECEIPT)
    LOGGER.warning("two\nlines of %s", "text")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["request"], first["outcome"], first["ttft_s"], first["level"]) == ("r-1", "finished", 0.25, "info")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert (second["message"], second["logger"]) == ("two\nlines of text", "chiasm")
    assert "request" not in second


def test_a_traceback_stays_on_one_line(capsys):
    configure_logging("info", "json")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        LOGGER.exception("broken")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError" in json.loads(line)["traceback"]
