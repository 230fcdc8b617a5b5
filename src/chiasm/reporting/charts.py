"""Curves as SVG, drawn for a width of a phone, so that their letters stay readable there."""

import math
from collections.abc import Sequence
from html import escape

from chiasm.reporting.blocks import Lines, Value

_WIDTH, _HEIGHT = 320, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 14, 38
_NUM_STEPS = 4
_ROUND = (1, 2, 2.5, 5, 10)


def lines_svg(lines: Lines) -> str:
    """A figure with its title, axes with units, and a legend where there are several curves."""
    points = [(x, one) for _, series in lines.series for x, one in series]
    across = sorted({x for x, _ in points})
    top = _round_up(max((one.value or 0.0 for _, one in points), default=0.0))
    body = _axes(lines.across, across, top, points[0][1]) if points else ""
    body += "".join(_curve(place, series, across, top) for place, (_, series) in enumerate(lines.series))
    legend = "".join(f'<li><i class="c{place}"></i>{escape(name)}</li>' for place, (name, _) in enumerate(lines.series))
    shown = f'<ul class="legend">{legend}</ul>' if len(lines.series) > 1 else ""
    return (
        f"<figure><figcaption>{escape(lines.title)}</figcaption>{shown}"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(lines.title)}">{body}</svg></figure>'
    )


def _axes(name: str, across: Sequence[float], top: float, example: Value) -> str:
    found = []
    for step in range(_NUM_STEPS + 1):
        level = top * step / _NUM_STEPS
        y = _y(level, top)
        label = Value(example.number, level)
        found.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(
            f'<text class="axis" text-anchor="end" x="{_LEFT - 6}" y="{y + 4:.1f}"'
            f' data-number="{label.number.key}">{escape(label.text)}</text>'
        )
    for x in across:
        place = f'x="{_x(x, across):.1f}" y="{_HEIGHT - _BOTTOM + 15}"'
        found.append(f'<text class="axis" text-anchor="middle" {place} data-number="concurrency">{x:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    found.append(f'<text class="axis" text-anchor="middle" x="{middle}" y="{_HEIGHT - 5}">{escape(name)}</text>')
    return "".join(found)


def _curve(place: int, series: Sequence[tuple[float, Value]], across: Sequence[float], top: float) -> str:
    spots = [(_x(x, across), _y(one.value or 0.0, top), x, one) for x, one in series]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in spots)
    dots = "".join(
        f'<circle class="s{place}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{at:g}: {escape(one.text)}</title></circle>'
        for x, y, at, one in spots
    )
    return f'<polyline class="s{place}" points="{line}"/>{dots}'


def _x(value: float, across: Sequence[float]) -> float:
    """Counts that double stand equally far apart."""
    first, last = math.log(across[0]), math.log(across[-1])
    share = 0.5 if first == last else (math.log(value) - first) / (last - first)
    return _LEFT + 14 + share * (_WIDTH - _LEFT - _RIGHT - 28)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)


def _round_up(value: float) -> float:
    """The next number that four steps divide into round ones."""
    if value <= 0:
        return 1.0
    unit = 10 ** math.floor(math.log10(value / _NUM_STEPS))
    return float(_NUM_STEPS * unit) * next(one for one in _ROUND if one * unit * _NUM_STEPS >= value * (1 - 1e-9))
