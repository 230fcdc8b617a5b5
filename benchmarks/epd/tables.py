"""Answers about topologies as Markdown."""

from typing import Any

from benchmarks.epd.forwarding import STAGES
from chiasm.observability.receipt import STAGES as ORDER

Row = dict[str, Any]


def mixed_table(result: Row) -> str:
    """Texts beside pictures against texts alone."""
    lines = [
        f"Requests with a picture come as often as texts, {result['rate_per_s']:.1f} a second each. 95th percentile of "
        "a text's first token beside them, over that of the same texts at the same times alone:\n",
        f"| {' | '.join(result['ratios'])} |",
        f"|{'---|' * len(result['ratios'])}",
        f"| {' | '.join(_ratio(ratio) for ratio in result['ratios'].values())} |\n",
        *(f"* {verdict}" for verdict in result["verdicts"]),
        *(line for name, sides in result.get("stages_ms", {}).items() for line in _parts(name, sides)),
        *(line for name, sides in result.get("threads_ms", {}).items() for line in _threads(name, sides)),
    ]
    return "\n".join(lines) + "\n"


def _parts(name: str, sides: Row) -> list[str]:
    """What first tokens of usual and of the slowest texts consist of; what grows most in the slowest comes first."""
    alone, beside = sides["alone"], sides["beside"]
    names = sorted(
        {*alone["slowest"], *beside["slowest"]},
        key=lambda part: alone["slowest"].get(part, 0.0) - beside["slowest"].get(part, 0.0),
    )
    lines = [
        f"\n{name}: mean ms of each part of the first token, for a tenth of the texts around the median and for the "
        "slowest tenth:\n",
        "| part | usual, alone | usual, beside pictures | slowest, alone | slowest, beside pictures |",
        "|---|---:|---:|---:|---:|",
    ]
    for part in names:
        row = [side[group].get(part, 0.0) for group in ("usual", "slowest") for side in (alone, beside)]
        lines.append(f"| {part} | {' | '.join(f'{value_ms:.2f}' for value_ms in row)} |")
    return lines


def _threads(name: str, sides: Row) -> list[str]:
    """What threads waited for a core, though they were ready to run."""
    lines = [
        f"\n{name}: ms for each text that threads were ready to run and had no core; in brackets one such wait:\n",
        "| thread | texts alone | beside pictures |",
        "|---|---:|---:|",
    ]
    for thread, beside in sides["beside"].items():
        both = (sides["alone"].get(thread), beside)
        row = [f"{one['waited_ms']:.2f} ({one['each_wait_ms']:.2f})" if one else "-" for one in both]
        lines.append(f"| {thread} | {' | '.join(row)} |")
    return lines


def answers_table(result: Row) -> str:
    """First tokens and whole answers of each way over those of the first, and what its gateway waited for a core."""
    what = f"{result['images']} pictures" if result["images"] else "Texts"
    lines = [
        f"{what}, answers of {result['output']} tokens, {result['rate_per_s']:.1f} requests a second, "
        f"{result['asked']} to each way. Ratios of means to those of {result['against']}, same requests at the same "
        "times. Handed over: share of requests that got an embedding of another worker. Waited: how long a gateway's "
        "event loop was ready to run and had no core, for each request.\n",
        "| way | TTFT, mean | p95 | E2EL, mean | TTFT | E2EL | handed over | waited |",
        "|---|---:|---:|---:|---|---|---:|---:|",
    ]
    for name, ms in result["ms"].items():
        ratios = result["ratios"][name]
        lines.append(
            f"| {name} | {ms['ttft_mean']:.1f} ms | {ms['ttft_p95']:.1f} ms | {ms['e2el_mean']:.1f} ms | "
            f"{_ratio(ratios.get('ttft'))} | {_ratio(ratios.get('e2el'))} | {result['handed_over'][name]:.0%} | "
            f"{result['waited_ms'][name]:.2f} ms |"
        )
    return "\n".join(lines) + "\n"


def repeat_table(result: Row) -> str:
    """A second question about a picture."""
    lines = [
        "| topology | first token over that of a text of the same length | pictures encoded | pictures decoded |",
        "|---|---|---|---|",
    ]
    for name, ratio in result["ratios"].items():
        lines.append(f"| {name} | {_ratio(ratio)} | {result['encodes'][name]:.0f} | {result['decodes'][name]:.0f} |")
    return "\n".join([*lines, "", *(f"* {verdict}" for verdict in result["verdicts"])]) + "\n"


def forwarding_table(result: Row) -> str:
    """What each way of forwarding spends, where."""
    lines = [
        "Medians in ms, one request at a time, prompts not cached. In brackets what the receipt charges to the stage, "
        "its share of the critical path; CPU in ms per request.\n",
        "| pictures | known | forwarded | answer | encode | transfer | P waits | prefill | decoded | CPU |",
        "|---" * 10 + "|",
    ]
    for row in result["table"]:
        stages = [f"{1e3 * row[f'{one}_s']:.1f} ({1e3 * row[f'critical_{one}_s']:.1f})" for one in STAGES]
        cpu = ", ".join(
            f"{name.removeprefix('cpu ')} {1e3 * used:.0f}" for name, used in row.items() if name.startswith("cpu ")
        )
        known = "yes" if row["is_known"] else "no"
        lines.append(
            f"| {row['images']} | {known} | {row['way']} | {1e3 * row['took_s']:.1f} | {' | '.join(stages)} | "
            f"{row['decoded']:.1f} | {cpu} |"
        )
    return "\n".join(lines) + "\n"


def stages_table(result: Row) -> str:
    """Where the time to the first token goes, by kind of request and topology."""
    rows = result["breakdown"]
    names = sorted({name for row in rows for name in row["stages_ms"]}, key=ORDER.index)
    stages = [name for name in names if any(row["stages_ms"].get(name, 0.0) >= 0.05 for row in rows)]
    heads = [f"{row['kind']}, {row['topology']}" for row in rows]
    lines = [
        f"Mean ms over {result['asked']} requests, one at a time, media that nobody has seen; from receipts. Each "
        'instant belongs to the stage that is furthest along. "Outside" is what the client saw beyond the server.\n',
        f"| stage | {' | '.join(heads)} |",
        "|---" + "|---:" * len(rows) + "|",
    ]
    lines += [
        f"| {stage} | {' | '.join(_number(row['stages_ms'].get(stage, 0.0)) for row in rows)} |" for stage in stages
    ]
    for name in ("unaccounted_ms", "outside_ms", "ttft_ms"):
        title = {"unaccounted_ms": "unaccounted", "outside_ms": "outside", "ttft_ms": "**time to first token**"}[name]
        lines.append(f"| {title} | {' | '.join(_number(row[name]) for row in rows)} |")
    for name, title in (("before_encoder_share", "before the encoder"), ("unaccounted_share", "unaccounted, median")):
        lines.append(f"| {title} | {' | '.join(f'{row[name]:.1%}' for row in rows)} |")
    return "\n".join(lines) + "\n"


SCENARIOS = {
    "mixed": ("Text beside pictures", mixed_table),
    "answers": ("Answers under load", answers_table),
    "repeat": ("Another question about the same picture", repeat_table),
    "stages": ("Where the time to the first token goes", stages_table),
    "forwarding": ("Metadata against media to the prefill worker", forwarding_table),
}


def _value(found: Row) -> float:
    return float(found["value"] if "value" in found else found["ratio"])


def _ratio(found: Row | None) -> str:
    return "-" if found is None else f"{_value(found):.2f} ({found['low']:.2f}-{found['high']:.2f})"


def _number(value_ms: float) -> str:
    return f"{value_ms:.1f}" if value_ms < 100 else f"{value_ms:.0f}"
