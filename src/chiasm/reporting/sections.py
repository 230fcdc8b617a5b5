"""A report as a page: which sections it has, and what is in them."""

import time
from collections.abc import Iterator, Sequence

from chiasm.observability.receipt import Receipt
from chiasm.reporting.blocks import Bars, Block, Content, Details, Facts, Section, Table, Value, value
from chiasm.reporting.cell_blocks import curves, in_order, kind, latency_table, stage_bars, stage_table
from chiasm.reporting.cells import AVOIDED
from chiasm.reporting.comparison import Change, Comparison
from chiasm.reporting.content import Cell, Report
from chiasm.reporting.memory_blocks import memory_blocks
from chiasm.reporting.numbers import NUMBERS
from chiasm.reporting.policy_tables import policy_blocks

_ALONE = (
    "One request at a time, every picture new. Bars: the mean time to the first token, each instant charged to the "
    "stage that was furthest along."
)


def sections_of(report: Report, comparison: Comparison | None = None) -> list[Section]:
    """All sections in order."""
    found = [Section("Summary", (_summary(report),), _when(report))]
    if comparison is not None:
        found.append(Section("Against the baseline", tuple(_comparison(comparison)), comparison.verdict))
    found.append(Section("Server", (_model(report), _workers(report))))
    found.append(Section("Where the time goes", tuple(_alone(report.stages)), _ALONE))
    found.append(
        Section(
            "Side by side",
            (*curves(report.concurrency), latency_table(report.concurrency, "open at once")),
            "The same requests with more and more of them open at once. A closed loop: it shows throughput and what "
            "sharing costs, not what waits at a given rate of arrivals (`chiasm bench` measures that).",
        )
    )
    if report.caches:
        found.append(Section("Caches", tuple(_caches(report)), "New content, then the very same again."))
    found.append(
        Section("Memory", tuple(memory_blocks(report)), "Parts know what they use, the system what is resident.")
    )
    found.append(Section("Requests", tuple(_examples(report)), "Times and counts alone: content is in no receipt."))
    found.append(Section("Limits and policy", tuple(policy_blocks(report.policy))))
    found.append(Section("Numbers", (Details("Where each number comes from", _numbers()),)))
    return found


def _alone(cells: tuple[Cell, ...]) -> Iterator[Block]:
    if any(cell.stages is not None for cell in cells):
        yield stage_bars(cells)
        yield stage_table(cells)
    yield latency_table(cells, "one at a time")


def _when(report: Report) -> str:
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.made_at_unix_s))
    return f"Made {made} from outside, over HTTP, with load of its own on the server."


def _summary(report: Report) -> Facts:
    measured = (*report.stages, *report.concurrency, *report.caches)
    best = max(report.concurrency, key=lambda one: one.throughput.requests_per_s, default=None)
    first = report.concurrency[0] if report.concurrency else None
    not_refused = [one for one in report.refusals if one.code is None]
    rows: list[tuple[str, Content]] = [
        ("model", report.model.id),
        ("finished", value("finished", sum(one.num_finished for one in measured))),
        ("errors", value("errors", sum(one.num_requests - one.num_finished for one in measured))),
    ]
    beside = "alone" if first is None or first.concurrency == 1 else f"{first.concurrency} open"
    if first is not None and first.ttft is not None:
        rows.append((f"TTFT p50, {kind(first)}, {beside}", value("ttft_p50", first.ttft.p50_ms)))
    if first is not None and first.tpot is not None:
        rows.append((f"TPOT p50, {beside}", value("tpot_p50", first.tpot.p50_ms)))
    if best is not None:
        rows.append((f"most requests / s, {best.concurrency} open", value("rate", best.throughput.requests_per_s)))
    if first is not None and first.stages is not None:
        rows.append((f"unaccounted of TTFT, {beside}", value("unaccounted_share", first.stages.unaccounted_share)))
    if report.refusals:
        refused = f"{len(report.refusals) - len(not_refused)} of {len(report.refusals)}"
        rows.append(("refused, of what should be", refused))
    return Facts((*rows, ("report took", value("took", report.took_s))))


def _model(report: Report) -> Facts:
    model = report.model
    return Facts(
        (
            ("Chiasm", report.version),
            ("running for", value("uptime", report.uptime_s)),
            ("model", model.id),
            ("family", model.family),
            ("tasks", ", ".join(model.tasks) or "generate"),
            ("model revision", model.model_revision or "-"),
            ("preparation revision", model.processor_revision or "-"),
            ("type", model.dtype),
            ("device", model.device),
            ("context, tokens", value("context", model.max_model_len)),
            ("topology", report.fleet.topology),
            ("policy", report.fleet.policy or "-"),
        )
    )


def _workers(report: Report) -> Table:
    rows = [
        (one.name, ", ".join(one.roles) or "pool", one.state, one.device or "-", one.reason or "-")
        for one in report.fleet.members
    ]
    return Table(("worker", "stages", "state", "device", "why"), tuple(rows), "Workers")


def _caches(report: Report) -> Iterator[Block]:
    rows = [
        (
            name,
            value("requests", cell.num_requests),
            value("cached_tokens", cell.share_cached_tokens),
            value("avoided_share", cell.share_avoided_pictures),
            value("ttft_p50", cell.ttft.p50_ms if cell.ttft else None),
            value("ttft_p95", cell.ttft.p95_ms if cell.ttft else None),
        )
        for name, cell in zip(("new", "again"), report.caches, strict=False)
    ]
    if rows:
        yield Table(
            ("content", "requests", "prompt tokens cached", "pictures not encoded", "TTFT p50", "TTFT p95"),
            tuple(rows),
            f"The same {kind(report.caches[0])} twice",
        )
    yield _keys(report)
    totals, workers = report.totals, report.worker_totals
    num_avoided = sum(count for name, count in workers.items() if name.startswith(AVOIDED))
    yield Facts(
        (
            (
                "prompt tokens cached, since the start",
                value("server_cached_tokens", _share(totals.get("cached_tokens", 0.0), totals.get("prompt_tokens"))),
            ),
            (
                "pictures not encoded, since the start",
                value("server_avoided_share", _share(num_avoided, totals.get("prompt_media_items"))),
            ),
        )
    )
    avoided = {name.removeprefix(AVOIDED): count for name, count in report.worker_totals.items() if AVOIDED in name}
    encoded = report.worker_totals.get("encoded_items", 0)
    yield Table(
        ("pictures since the start", "count"),
        (
            ("encoded", value("encoded", encoded)),
            *(
                (f"avoided: {name.replace('_', ' ')}", value("avoided", count))
                for name, count in sorted(avoided.items())
            ),
        ),
        "Avoided encodes",
    )


def _keys(report: Report) -> Table:
    model = report.model
    rows: tuple[tuple[Content, ...], ...] = (
        (
            "embeddings",
            "the medium's bytes (SHA-256), the model's revision, the preparation's revision, the tenant's salt",
            f"... : {model.model_revision} : {model.processor_revision or '-'} : ...",
        ),
        (
            "prefix blocks",
            "all tokens before, identities of their media, revisions of model and adapter, the tenant's salt",
            f"... : {model.model_revision} : ...",
        ),
    )
    return Table(
        ("cache", "a key is made of", "now"), rows, "Keys", "How long and how much is kept: Limits and policy."
    )


def _share(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _examples(report: Report) -> Iterator[Block]:
    if report.examples:
        bars = tuple((one.what, _receipt_parts(one.receipt)) for one in report.examples)
        yield Bars("A usual and a slow request of those whose receipts the server keeps", bars)
        head = (
            "request",
            "way",
            "outcome",
            "TTFT",
            "E2EL",
            "pictures",
            "prompt tokens",
            "of them cached",
            "output tokens",
        )
        rows = [
            (
                one.what,
                one.receipt.route.path if one.receipt.route else "-",
                one.receipt.outcome,
                value("receipt_ttft", one.receipt.ttft_s),
                value("receipt_e2e", one.receipt.e2e_s),
                value("receipt_items", one.receipt.num_items),
                value("receipt_prompt", one.receipt.num_prompt_tokens),
                value("receipt_cached", one.receipt.num_cached_tokens),
                value("receipt_output", one.receipt.num_output_tokens),
            )
            for one in report.examples
        ]
        yield Table(head, tuple(rows))
    rows_refused = tuple(
        (one.sent, value("status", one.status), one.code or "not refused", one.message) for one in report.refusals
    )
    marks = frozenset(place for place, one in enumerate(report.refusals) if one.code is None)
    if rows_refused:
        yield Table(("what was sent", "HTTP", "code", "what the server said"), rows_refused, "Refused", marks=marks)


def _receipt_parts(receipt: Receipt) -> tuple[tuple[str, Value], ...]:
    stages = [(name, value("receipt_stage", receipt.stages_s[name])) for name in in_order(receipt.stages_s)]
    rest = (
        ("unaccounted", value("receipt_stage", receipt.unaccounted_s)),
        ("decode", value("receipt_decode", receipt.decode_s)),
    )
    return (*stages, *rest)


def _comparison(comparison: Comparison) -> Iterator[Block]:
    changed = [one for one in comparison.changes if one.verdict != "same"]
    if changed:
        yield _changes(changed, comparison.method)
    if comparison.findings:
        marks = frozenset(range(len(comparison.findings)))
        yield Table(("worse without statistics",), tuple((text,) for text in comparison.findings), marks=marks)
    yield Details(f"All {len(comparison.changes)} comparisons", _changes(comparison.changes, comparison.method))


def _changes(changes: Sequence[Change], method: str) -> Table:
    rows = tuple(
        (
            one.cell,
            one.what,
            value("before", one.before_ms),
            value("now", one.now_ms),
            value("change", one.change),
            value("change_low", one.low),
            value("change_high", one.high),
            one.verdict,
        )
        for one in changes
    )
    head = ("cell", "what", "baseline", "now", "change", "at least", "at most", "verdict")
    marks = frozenset(place for place, one in enumerate(changes) if one.verdict == "regression")
    return Table(head, rows, marks=marks, note=method)


def _numbers() -> Table:
    rows = tuple((one.title, one.unit, one.formula, one.metric, one.source) for one in NUMBERS.values())
    return Table(("number", "unit", "formula", "metric", "source"), rows)
