"""A page as Markdown: tables and lists, no pictures."""

from collections.abc import Iterable, Iterator, Sequence

from chiasm.reporting.blocks import Bars, Block, Content, Details, Facts, Lines, Section, Table, Value


def markdown_page(title: str, sections: Sequence[Section]) -> str:
    """The whole file."""
    lines = [f"# {_text(title)}", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        if section.text:
            lines += [section.text, ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Facts):
        yield from (f"- {name}: {_text(content)}" for name, content in block.rows)
    elif isinstance(block, Bars):
        yield from _bars(block)
    elif isinstance(block, Lines):
        yield from _lines(block)
    else:
        assert isinstance(block, Details)
        yield from (f"### {block.title}", "")
        yield from _block(block.block)


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"### {table.title}", "")
    yield from _rows((table.head, *table.rows))
    if table.note:
        yield from ("", table.note)


def _bars(bars: Bars) -> Iterator[str]:
    """What bars show without their lengths: the parts of each row, the largest first."""
    yield from (f"### {bars.title}", "")
    for label, parts in bars.rows:
        largest = sorted(parts, key=lambda part: -(part[1].value or 0.0))
        yield f"- {label}: " + ", ".join(f"{name.replace('_', ' ')} {one.text}" for name, one in largest if one.value)


def _lines(lines: Lines) -> Iterator[str]:
    across = [x for x, _ in lines.series[0][1]]
    yield from (f"### {lines.title}", "")
    rows: list[tuple[Content, ...]] = [(name, *(one for _, one in series)) for name, series in lines.series]
    yield from _rows(((lines.across, *(f"{x:g}" for x in across)), *rows))


def _rows(rows: Iterable[tuple[Content, ...]]) -> Iterator[str]:
    for place, row in enumerate(rows):
        yield "| " + " | ".join(_text(one).replace("|", "\\|") for one in row) + " |"
        if place == 0:
            yield "|" + "---|" * len(row)


def _text(content: Content) -> str:
    """On one line, and no markup: names and messages come from a server."""
    text = content.text if isinstance(content, Value) else content
    return " ".join(text.split()).replace("<", "&lt;")
