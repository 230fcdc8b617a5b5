"""Heat maps as SVG: gain over the baseline, one square for each cell."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from chiasm.bench.grid.cells import Cell, Kind
from chiasm.bench.grid.results import CellResult, Figure
from chiasm.bench.grid.spec import Cache, GridSpec
from chiasm.bench.statistics.intervals import Interval

FULL_GAIN = 0.6
"""Gains and losses from here on have the full colour."""

_NEUTRAL, _GAIN, _LOSS = (241, 243, 245), (36, 171, 148), (233, 112, 74)
_LEFT, _TOP, _SIDE, _HEIGHT, _GAP = 92, 40, 78, 46, 2  # a side holds "−138…−102 ? !"


def heat_map(
    spec: GridSpec, found: Sequence[CellResult], topology: str, figure: Figure, load: float, cache: Cache
) -> str:
    """One map at one load: pictures across; output length and visual tokens of a picture down."""
    by_cell = {result.cell: result for result in found}
    rows = [(output, tokens) for output in spec.outputs for tokens in spec.tokens]
    width, height = _LEFT + _SIDE * len(spec.images), _TOP + _HEIGHT * len(rows)
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" class="heat" style="max-width:{width}px" '
        f'aria-label="Gain of {escape(topology)} at load {load:g}">',
        *_axes(spec, rows),
    ]
    for y, (output, tokens) in enumerate(rows):
        for x, images in enumerate(spec.images):
            kind = Kind(images=images, tokens=tokens, output=output, cache=cache if images else "cold")
            result = by_cell.get(Cell(kind=kind, load=load))
            parts.append(_square(_LEFT + _SIDE * x, _TOP + _HEIGHT * y, *_content(spec, result, topology, figure)))
    return "".join([*parts, "</svg>"])


def colour(gain: float) -> str:
    """Between neutral and full, as #rrggbb."""
    end = _GAIN if gain > 0 else _LOSS
    share = min(1.0, abs(gain) / FULL_GAIN)
    mixed = (round(a + (b - a) * share) for a, b in zip(_NEUTRAL, end, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def legend() -> str:
    """What the colours mean."""
    steps = [FULL_GAIN * (number - 3) / 3 for number in range(7)]
    squares = "".join(
        f'<span class="swatch" style="background:{colour(gain)}">{_signed(gain)}&thinsp;%</span>' for gain in steps
    )
    return f'<div class="legend">{squares}</div>'


def _axes(spec: GridSpec, rows: Sequence[tuple[int, int]]) -> Iterator[str]:
    yield _text(_LEFT + _SIDE * len(spec.images) / 2, 14, "pictures in a request", "axis")
    for x, images in enumerate(spec.images):
        yield _text(_LEFT + _SIDE * (x + 0.5), 33, str(images) if images else "text", "tick")
    for y, (output, tokens) in enumerate(rows):
        middle = _TOP + _HEIGHT * (y + 0.5)
        yield _text(_LEFT - 8, middle - 3, f"output {output}", "tick end")
        yield _text(_LEFT - 8, middle + 13, f"{tokens} a picture", "axis end")


def _content(
    spec: GridSpec, result: CellResult | None, topology: str, figure: Figure
) -> tuple[str | None, Iterable[str], str]:
    """Colour, lines of text, and what a pointer that rests on it says."""
    if result is None:
        return None, (), "not measured"
    own, baseline = result.topologies[topology], result.topologies[spec.baseline]
    if own.verdict == "unstable":
        return "url(#hatch)", ("cannot", "keep up"), f"{result.cell}: {topology} does not keep up"
    if baseline.verdict == "unstable":
        return colour(FULL_GAIN), (f"{spec.baseline}", "cannot"), f"{result.cell}: {spec.baseline} does not keep up"
    gain = own.gain.get(figure)
    if gain is None:
        return None, ("no pair",), f"{result.cell}: too few requests were answered by both"
    is_late = "invalid" in (own.verdict, baseline.verdict)
    num_failed = own.num_failed + baseline.num_failed
    ends = f"{_signed(gain.low)}…{_signed(gain.high)}{' ?' if is_late else ''}{' !' if num_failed else ''}"
    said = f"{result.cell}: {_words(gain)}, from {gain.count} requests{'; the client was late' if is_late else ''}"
    said += f"; failed: {own.num_failed} here, {baseline.num_failed} of {spec.baseline}" if num_failed else ""
    return colour(gain.value), (f"{_signed(gain.value)} %", ends), said


def _signed(gain: float) -> str:
    """In percent, with the minus sign of a typesetter."""
    return f"{100 * gain:+.0f}".replace("-", "−") if abs(gain) >= 0.005 else "0"


def _words(gain: Interval) -> str:
    return f"{100 * gain.value:+.1f} % (95 %: {100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def _square(x: float, y: float, fill: str | None, lines: Iterable[str], said: str) -> str:
    shown = "".join(
        _text(x + _SIDE / 2, y + 20 + 16 * number, line, "value" if number == 0 else "range")
        for number, line in enumerate(lines)
    )
    style = f'fill="{fill}"' if fill else 'class="empty"'
    box = f'<rect x="{x}" y="{y}" width="{_SIDE - _GAP}" height="{_HEIGHT - _GAP}" rx="4" {style}/>'
    return f"<g><title>{escape(said)}</title>{box}{shown}</g>"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'
