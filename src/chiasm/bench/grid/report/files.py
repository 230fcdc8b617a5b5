"""A report's files: the page for people, Markdown for repositories, data for programs."""

from pathlib import Path

import msgspec

from chiasm.bench.grid.report.data import Report
from chiasm.bench.grid.report.markdown import markdown_of
from chiasm.bench.grid.report.page import html_of

PAGE, TEXT, DATA = "report.html", "report.md", "report.json"


def write_report(folder: Path, report: Report) -> None:
    """Write all three."""
    (folder / PAGE).write_text(html_of(report), "utf-8")
    (folder / TEXT).write_text(markdown_of(report), "utf-8")
    (folder / DATA).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
