"""The grid and its scenarios as Markdown."""

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
STAGES = ("encode", "transfer", "prefill_queue", "prefill")
_FIGURES = {"first_token_s": "first token", "end_s": "end"}
_SHADES = ((0.9, "▁"), (0.97, "▃"), (1.03, "▅"), (1.1, "▇"))


def grid_table(result: Row) -> str:
    """Means of each topology with their intervals, auto against the others, and what came of the promises."""
    topologies = result.get("topologies", ["agg", "e-pd", "auto"])
    lines = [
        "Two worker processes of one thread each (three of e-p-d), and gateway and client on the same cores; Poisson "
        "arrivals, unique pictures, latencies from the scheduled time. Ratios below 1 are in favour of auto.\n",
        f"| cell | | {' | '.join(topologies)} | auto / best fixed | auto / agg | errors |",
        "|---" * (5 + len(topologies)) + "|",
    ]
    for entry in result["summary"]:
        for figure, name in _FIGURES.items():
            means, auto = entry["means"][figure], entry["auto"].get(figure, {})
            shown = " | ".join(_milliseconds(means.get(one)) for one in topologies)
            best, agg = (_ratio(auto.get(one)) for one in ("against best", "against agg"))
            best += f" of {auto['best fixed']}" if "best fixed" in auto else ""
            lines.append(f"| {entry['cell']} | {name} | {shown} | {best} | {agg} | {sum(entry['errors'].values())} |")
    return "\n".join([*lines, *_promises(result), *_heat_maps(result["summary"])]) + "\n"


def mixed_table(result: Row) -> str:
    """Texts beside pictures against texts alone."""
    lines = [
        f"Requests with a picture come as often as texts, {result['rate_per_s']:.1f} a second each. 95th percentile of "
        "a text's first token beside them, over that of the same texts at the same times alone:\n",
        "| agg | e-pd | auto |",
        "|---|---|---|",
        f"| {' | '.join(_ratio(result['ratios'].get(one)) for one in ('agg', 'e-pd', 'auto'))} |\n",
        *(f"* {verdict}" for verdict in result["verdicts"]),
    ]
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


SCENARIOS = {
    "mixed": ("Text beside pictures", mixed_table),
    "repeat": ("Another question about the same picture", repeat_table),
    "forwarding": ("Metadata against media to the prefill worker", forwarding_table),
}


def _promises(result: Row) -> list[str]:
    """How often each was kept; and the cells that break one, or in which a split loses, with the reason."""
    tally = result.get("tally", {})
    if not tally:
        return []
    lines = ["\n| promise | kept | open | broken |", "|---|---|---|---|"]
    lines += [f"| {what} | {n['kept']} | {n['open']} | {n['broken']} |" for what, n in tally.items()]
    notable = [
        f"* {entry['cell']}: {verdict}"
        for entry in result["summary"]
        for verdict in entry["verdicts"]
        if ": broken" in verdict or verdict.startswith("e-pd is later")
    ]
    return [*lines, "", *notable]


def _heat_maps(summary: Sequence[Row]) -> list[str]:
    """Auto's first token over the best fixed topology's: one map for each output length, pictures across."""
    cells = [
        entry for entry in summary if "shape" in entry and entry["auto"].get("first_token_s", {}).get("against best")
    ]
    if len(cells) < 2:
        return []
    legend = ", ".join(f"{shade} below {limit:g}" for limit, shade in _SHADES)
    lines = [f"\nFirst token of auto over that of the best fixed topology ({legend}, █ above):"]
    columns = sorted({(one["shape"]["images"], one["shape"]["tokens"]) for one in cells})
    for output in sorted({one["shape"]["output"] for one in cells}):
        heads = " | ".join(f"{images} x {tokens}" for images, tokens in columns)
        lines += [f"\n| output {output}, load | {heads} |", "|---" * (1 + len(columns)) + "|"]
        for load in sorted({one["shape"]["load"] for one in cells}):
            row = [_heat(cells, images, tokens, output, load) for images, tokens in columns]
            lines.append(f"| {load:g} | {' | '.join(row)} |")
    return lines


def _heat(cells: Sequence[Row], images: int, tokens: int, output: int, load: float) -> str:
    wanted = {"images": images, "tokens": tokens, "output": output, "load": load}
    for entry in cells:
        if entry["shape"] == wanted:
            value = _value(entry["auto"]["first_token_s"]["against best"])
            shade = next((shade for limit, shade in _SHADES if value < limit), "█")
            return f"{shade} {value:.2f}"
    return ""


def _value(found: Row) -> float:
    return float(found["value"] if "value" in found else found["ratio"])


def _milliseconds(mean: Row | float | None) -> str:
    if mean is None:
        return "-"
    if isinstance(mean, float):  # of results that have no intervals
        return f"{1e3 * mean:.0f} ms"
    return f"{1e3 * mean['value']:.0f} ms ({1e3 * mean['low']:.0f}-{1e3 * mean['high']:.0f})"


def _ratio(found: Row | None) -> str:
    return "-" if found is None else f"{_value(found):.2f} ({found['low']:.2f}-{found['high']:.2f})"
