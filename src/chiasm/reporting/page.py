"""A page as one HTML file that needs nothing else: no script, no font, no picture, nothing from a network.

Each number stands in an element that names its entry of `chiasm.reporting.numbers`.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from chiasm.reporting.blocks import Bars, Block, Content, Details, Facts, Lines, Section, Table, Value
from chiasm.reporting.cell_blocks import in_order
from chiasm.reporting.charts import lines_svg

_CODE = re.compile("`([^`]+)`")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(title: str, sections: Sequence[Section]) -> str:
    """The whole file."""
    style = files("chiasm.reporting").joinpath("style.css").read_text("utf-8")
    links = "".join(f'<a href="#s{place}">{escape(one.title)}</a>' for place, one in enumerate(sections))
    body = "".join(_section(place, one) for place, one in enumerate(sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1><nav>{links}</nav></header>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _section(place: int, section: Section) -> str:
    text = f'<p class="lead">{_prose(section.text)}</p>' if section.text else ""
    return f'<section id="s{place}"><h2>{escape(section.title)}</h2>{text}{_blocks(section.blocks)}</section>\n'


def _blocks(blocks: Iterable[Block]) -> str:
    """Curves that follow each other share a row."""
    parts: list[str] = []
    curves: list[str] = []
    for block in blocks:
        if isinstance(block, Lines):
            curves.append(lines_svg(block))
            continue
        if curves:
            parts.append(f'<div class="charts">{"".join(curves)}</div>')
            curves = []
        parts.append(_block(block))
    return "".join(parts) + (f'<div class="charts">{"".join(curves)}</div>' if curves else "")


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Facts):
        return _facts(block)
    if isinstance(block, Bars):
        return _bars(block)
    assert isinstance(block, Details)
    return f"<details><summary>{escape(block.title)}</summary>{_blocks([block.block])}</details>"


def _content(content: Content) -> str:
    if isinstance(content, Value):
        return f'<data data-number="{content.number.key}">{escape(content.text)}</data>'
    return _prose(content)


def _prose(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _table(table: Table) -> str:
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    numeric = [isinstance(content, Value) for content in table.rows[0]] if table.rows else []
    head = "".join(
        f'<th scope="col"{_class(numeric, place)}>{escape(name)}</th>' for place, name in enumerate(table.head)
    )
    rows = "".join(_row(row, is_marked=place in table.marks) for place, row in enumerate(table.rows))
    return f'{title}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


def _class(numeric: list[bool], place: int) -> str:
    return ' class="n"' if place < len(numeric) and numeric[place] else ""


def _row(row: tuple[Content, ...], *, is_marked: bool) -> str:
    mark = ' class="mark"' if is_marked else ""
    cells = "".join(map(_cell, row))
    return f"<tr{mark}>{cells}</tr>"


def _facts(facts: Facts) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{_content(content)}</dd></div>" for name, content in facts.rows)
    return f'<dl class="facts">{rows}</dl>'


def _bars(bars: Bars) -> str:
    names = list(dict.fromkeys(name for _, parts in bars.rows for name, _ in parts))
    colors = {name: _color(place) for place, name in enumerate(in_order(names))}
    longest = max((_length(parts) for _, parts in bars.rows), default=0.0) or 1.0
    rows = "".join(_bar(label, parts, colors, longest) for label, parts in bars.rows)
    legend = "".join(
        f'<li><i style="{style}"></i>{escape(name.replace("_", " "))}</li>' for name, style in colors.items()
    )
    return f'<h3>{escape(bars.title)}</h3><ul class="legend">{legend}</ul><div class="bars">{rows}</div>'


def _bar(label: str, parts: tuple[tuple[str, Value], ...], colors: dict[str, str], longest: float) -> str:
    pieces = "".join(
        f'<span style="width:{100 * (one.value or 0) / longest:.3f}%;{colors[name]}"'
        f' title="{escape(name.replace("_", " "))}: {escape(one.text)}"></span>'
        for name, one in parts
        if one.value and one.value > 0
    )
    total = Value(parts[0][1].number, _length(parts)) if parts else None
    told = _content(total) if total is not None else ""
    return f'<div class="row"><span class="label">{escape(label)}</span><span class="bar">{pieces}</span>{told}</div>'


def _color(place: int) -> str:
    """Hues far apart, and every other one darker; the style sheet adds the scheme's lightness."""
    return f"--h:{place * 137.5 % 360:.0f};--d:{place % 2}"


def _length(parts: tuple[tuple[str, Value], ...]) -> float:
    return sum(max(one.value or 0.0, 0.0) for _, one in parts)


def _cell(content: Content) -> str:
    kind = ' class="n"' if isinstance(content, Value) else ""
    return f"<td{kind}>{_content(content)}</td>"
