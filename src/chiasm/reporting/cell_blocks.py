"""Measured cells as bars, curves and tables."""

from collections.abc import Iterable, Iterator

from chiasm.observability.receipt import STAGES
from chiasm.reporting.blocks import Bars, Content, Lines, Table, Value, value
from chiasm.reporting.content import Cell
from chiasm.reporting.numbers import NUMBERS

_LATENCIES = ("ttft", "tpot", "e2el")


def kind(cell: Cell) -> str:
    """What the requests of a cell carry."""
    if cell.image_size is None:
        return "text"
    width, height = cell.image_size
    return f"{cell.num_images} x {f'{width}²' if width == height else f'{width}x{height}'}"


def _cell_parts(cell: Cell) -> tuple[tuple[str, Value], ...]:
    if cell.stages is None:
        return ()
    known = [(name, value("stage", cell.stages.stages_ms[name])) for name in in_order(cell.stages.stages_ms)]
    rest = (
        ("unaccounted", value("unaccounted", cell.stages.unaccounted_ms)),
        ("outside", value("outside", cell.stages.outside_ms)),
    )
    return (*known, *rest)


def in_order(names: Iterable[str]) -> list[str]:
    """Stages on a request's way; others last."""
    return sorted(names, key=lambda name: STAGES.index(name) if name in STAGES else len(STAGES))


def stage_bars(cells: Iterable[Cell]) -> Bars:
    """The mean time to the first token of each cell, in parts."""
    return Bars(
        "Time to the first token, by stage", tuple((kind(cell), _cell_parts(cell)) for cell in cells if cell.stages)
    )


def stage_table(cells: tuple[Cell, ...]) -> Table:
    """The same in numbers: a row for each stage, a column for each kind of request."""
    known = [(kind(cell), cell, dict(_cell_parts(cell))) for cell in cells if cell.stages is not None]
    names = in_order({name for _, _, parts in known for name in parts} - {"unaccounted", "outside"})
    rows: list[tuple[Content, ...]] = [
        (name.replace("_", " "), *(parts.get(name, value("stage", 0.0)) for _, _, parts in known))
        for name in (*names, "unaccounted", "outside")
    ]
    totals = (value("stage_total", cell.stages.ttft_ms if cell.stages else None) for _, cell, _ in known)
    head = ("stage", *(name for name, _, _ in known))
    note = "Outside: what the client saw beyond the server's receipt; sending the body, mostly."
    return Table(head, (*rows, ("TTFT mean", *totals)), "Stages", note)


def latency_table(cells: tuple[Cell, ...], title: str) -> Table:
    """Rates and failures of each cell, and the latencies that its requests have."""
    latencies = [name for name in _LATENCIES if any(getattr(cell, name) is not None for cell in cells)]
    keys = [f"{name}_{point}" for name in latencies for point in ("p50", "p95")]
    counts = ("requests", "errors", "rate", "tokens_rate")
    rows: list[tuple[Content, ...]] = []
    for cell in cells:
        numbers: dict[str, float] = {"requests": cell.num_requests, "errors": cell.num_requests - cell.num_finished}
        rates = {"rate": cell.throughput.requests_per_s, "tokens_rate": cell.throughput.output_tokens_per_s}
        row: list[Content] = [kind(cell), value("concurrency", cell.concurrency)]
        row += [value(key, (numbers | rates)[key]) for key in counts]
        for name in latencies:
            spread = getattr(cell, name)
            row += [value(f"{name}_{point}", getattr(spread, f"{point}_ms", None)) for point in ("p50", "p95")]
        rows.append(tuple(row))
    head = ("request", "open", *(NUMBERS[key].title for key in (*counts, *keys)))
    marks = frozenset(place for place, cell in enumerate(cells) if cell.num_finished < cell.num_requests)
    return Table(head, tuple(rows), f"Latency and throughput, {title}", marks=marks)


def curves(cells: tuple[Cell, ...]) -> Iterator[Lines]:
    """Rates and latencies over the requests that are open at once."""

    def curve(key: str, of: Iterable[float | None]) -> tuple[tuple[float, Value], ...]:
        return tuple(
            (cell.concurrency, value(key, one)) for cell, one in zip(cells, of, strict=True) if one is not None
        )

    if len(cells) < 2:
        return
    yield Lines(
        "Requests / s", "open", (("finished", curve("rate", [one.throughput.requests_per_s for one in cells])),)
    )
    for name, title in (("ttft", "Time to first token"), ("tpot", "Time per further token"), ("e2el", "Whole answer")):
        spreads = [getattr(cell, name) for cell in cells]
        if any(spread is not None for spread in spreads):
            points = (("p50", "p50_ms"), ("p95", "p95_ms"))
            series = tuple(
                (label, curve(f"{name}_{label}", [getattr(one, field, None) for one in spreads]))
                for label, field in points
            )
            yield Lines(title, "open", series)
