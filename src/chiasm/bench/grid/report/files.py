"""A report's files: the page for people, Markdown for repositories, data for programs."""

from pathlib import Path

import msgspec

from chiasm.bench.grid.report.data import Report, read_report
from chiasm.bench.grid.report.markdown import markdown_of
from chiasm.bench.grid.report.page import html_of

PAGE, TEXT, DATA = "report.html", "report.md", "report.json"


def dated_as_measured(report: Report, folder: Path) -> Report:
    """The report with date, machine and command of the one in the folder, if there is one: nothing was measured since.

    Raises:
        InvalidSettingError: What is there is no report.
    """
    if not (folder / DATA).exists():
        return report
    earlier = read_report(folder / DATA)
    return msgspec.structs.replace(report, date=earlier.date, machine=earlier.machine, command=earlier.command)


def write_report(folder: Path, report: Report) -> None:
    """Write all three."""
    (folder / PAGE).write_text(html_of(report), "utf-8")
    (folder / TEXT).write_text(markdown_of(report), "utf-8")
    (folder / DATA).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
