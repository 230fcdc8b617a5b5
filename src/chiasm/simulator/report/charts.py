"""Charts as SVG. Rows are fleets; numbers stand beside what they are drawn as."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 460, 30, 132, 62, 8
_SPAN = _WIDTH - _LEFT - _RIGHT
_NUM_TICKS = 4
_MAX_LABEL = 20
_FULL = 0.9
"""Use of a stage from which on it is drawn as one that binds."""


class Tail(NamedTuple):
    """A fleet's latencies, in milliseconds; None: it does not keep up, and there is none to speak of."""

    fleet: str
    p50: float
    p90: float
    p95: float
    p99: float
    keeps_up: bool = True


class Use(NamedTuple):
    """A stage of a fleet and the busiest worker's share of the time."""

    fleet: str
    stage: str
    share: float


def tails(title: str, rows: Sequence[Tail], slo_ms: float = math.inf) -> str:
    """Medians as bars, and beyond them what the slower ones take, up to the 99th percentile."""
    stable = [one.p99 for one in rows if one.keeps_up]
    most = _round_up(max([*stable, slo_ms if math.isfinite(slo_ms) else 0.0, 1e-3]))
    height = _TOP + _ROW * len(rows) + 22
    parts = [
        *(_axis(most, height) if stable else ()),
        *(part for row, one in enumerate(rows) for part in _tail(row, one, most)),
    ]
    if stable and math.isfinite(slo_ms):
        at = _x(slo_ms, most)
        parts.append(f'<line class="slo" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{height - 20}"/>')
    return _figure(title, height, parts)


def uses(title: str, rows: Sequence[Use]) -> str:
    """Shares of the time as bars."""
    height = _TOP + _ROW * len(rows) + 4
    return _figure(title, height, [part for row, one in enumerate(rows) for part in _use(row, one)])


def _figure(title: str, height: int, parts: Sequence[str]) -> str:
    label = escape(title, quote=True)
    drawn = "".join(parts)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{label}">{drawn}</svg></figure>'
    )


def _tail(row: int, one: Tail, most: float) -> Iterator[str]:
    top = _TOP + _ROW * row
    yield _label(one.fleet, top)
    if not one.keeps_up:
        yield f'<text class="bad" x="{_LEFT + 4}" y="{top + 17}">does not keep up</text>'
        return
    median, far = _x(one.p50, most), _x(one.p99, most)
    yield f'<rect class="tail" x="{_LEFT}" y="{top + 6}" width="{far - _LEFT:.1f}" height="15" rx="2"/>'
    yield f'<rect class="bar" x="{_LEFT}" y="{top + 6}" width="{median - _LEFT:.1f}" height="15" rx="2"/>'
    for value in (one.p90, one.p95):
        at = _x(value, most)
        yield f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top + 6}" y2="{top + 21}"/>'
    yield f'<text x="{far + 5:.1f}" y="{top + 17}">{_ms(one.p50)} / {_ms(one.p99)}</text>'


def _use(row: int, one: Use) -> Iterator[str]:
    top, width = _TOP + _ROW * row, _SPAN * min(one.share, 1.0)
    kind = ' style="fill:var(--slo)"' if one.share >= _FULL else ""
    yield _label(f"{one.fleet} {one.stage}", top)
    yield f'<rect class="track" x="{_LEFT}" y="{top + 6}" width="{_SPAN}" height="15" rx="2"/>'
    yield f'<rect class="bar" x="{_LEFT}" y="{top + 6}" width="{width:.1f}" height="15" rx="2"{kind}/>'
    yield f'<text x="{_LEFT + _SPAN + 6}" y="{top + 17}">{one.share:.0%}</text>'


def _label(text: str, top: int) -> str:
    short = text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 1] + "…"
    return f'<text x="{_LEFT - 8}" y="{top + 17}" text-anchor="end"><title>{escape(text)}</title>{escape(short)}</text>'


def _axis(most: float, height: int) -> Iterator[str]:
    for tick in range(_NUM_TICKS + 1):
        value = most * tick / _NUM_TICKS
        at = _x(value, most)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{height - 20}"/>'
        yield f'<text class="axis" x="{at:.1f}" y="{height - 6}" text-anchor="middle">{_ms(value)}</text>'


def _x(value: float, most: float) -> float:
    return _LEFT + _SPAN * min(value / most, 1.0)


def _ms(value: float) -> str:
    """Three digits, never with an exponent."""
    if value >= 10_000:
        return f"{value / 1e3:.1f} s" if value < 100_000 else f"{value / 1e3:.0f} s"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _round_up(value: float) -> float:
    """The next number that divides by four without a rest worth printing."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(scale * step for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if scale * step >= value * (1 - 1e-9))
