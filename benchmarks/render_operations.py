"""Sections of docs/performance.md about operating: tenants, adapters, and fleets in which things fail."""

from typing import Any

from benchmarks.verdicts import judged, spread

Result = dict[str, Any]
MOST_BESIDE_A_FLOOD = 1.1
"""Another tenant's 95th percentile beside a flood, over that beside the same tenant at its limit."""


def noisy_section(result: Result, conditions: str) -> str:
    """A quiet tenant alone, beside another at its limit, and beside a flood, with what the flood's client costs."""
    options = result["options"]
    settle_s = options.get("settle_s", 0.0)
    settled = f" It begins {settle_s:g} s after the other, when what a limit lets through at once is used up."
    lines = [
        f"## A tenant beside one that floods\n\n{conditions}",
        f"Time to first token of a tenant that asks {options['quiet_per_s']:g} times a second; the other's limit is "
        f"{options['limit_per_s']:g} a second, and its flood ten times that. {options['rounds']} rounds of "
        f"{options['seconds']:g} s a condition.{settled if settle_s else ''}\n",
        "| | against | p50 | p95 |",
        "|---|---|---|---|",
    ]
    for name, ratio in result["ratios"].items():
        which, _, base = name.partition(" / ")
        is_judged = which == "flood" and base in ("at its limit", "refused elsewhere")
        p95 = judged(ratio["p95_ms"], MOST_BESIDE_A_FLOOD if is_judged else None, is_most=True)
        lines.append(f"| {which} | {base} | {spread(ratio['p50_ms'])} | {p95} |")
    if "flood / refused elsewhere" in result["ratios"]:
        lines.append(
            "\nRefused elsewhere: the flood's client sends as often, nine of ten requests to a process that does "
            "nothing but refuse, so that the flood against it is what Chiasm's refusals cost, and it against the limit "
            "what the client on the same cores does."
        )
    return "\n".join(lines) + "\n"


def refusals_section(result: Result, conditions: str) -> str:
    """Clients that ask again as soon as they are refused."""
    lines = [
        f"## Refusals without a pause\n\n{conditions}",
        "Connections of a tenant beyond its limit that send the next request when the last is refused.\n",
        "| `gateway.refusal_delay_s` | connections | refusals a second | CPU of one | share of a core |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one['delay_s']:g} | {one['connections']} | {one['refused_per_s']:,.0f} | {one['cpu_us']:.0f} us "
        f"| {one['cpu_share']:.0%} |"
        for one in result["refusals"]
    ]
    return "\n".join(lines) + "\n"


def timing_section(result: Result, conditions: str) -> str:
    """Whether times tell what another tenant has asked."""
    lines = [
        f"## What times tell of another tenant's requests\n\n{conditions}",
        f"The chance that a question about a picture is answered faster than one that nobody asked before, "
        f'{len(result["rounds"])} rounds, `gateway.cache_scope = "{result["options"]["scope"]}"`; 0.5 tells nothing.\n',
        "| asked before by | chance | median to first token | |",
        "|---|---|---|---|",
    ]
    for probe, one in result["told"].items():
        chance = f"{one['auc']:.2f} ({one['low']:.2f}-{one['high']:.2f})"
        verdict = ""
        if probe == "other":
            verdict = "tells nothing" if one["low"] <= 0.5 <= one["high"] else "**tells something**"
        name = {"fresh": "nobody", "other": "another tenant", "own": "the tenant itself"}[probe]
        lines.append(f"| {name} | {chance} | {one['median_ms']:.1f} ms | {verdict} |")
    return "\n".join(lines) + "\n"


def adapters_section(result: Result, conditions: str) -> str:
    """What adapters in a batch cost, and adapters that do not fit."""
    setting = result["settings"]
    lines = [
        f"## LoRA adapters in a batch\n\n{conditions}",
        f"{setting['model']}, rank {setting['rank']}, targets {setting['targets']}, {setting['threads']} threads, "
        f"batches of 16 requests; against the base (0 adapters), and `evicted` (room for {setting['slots']} of 16) "
        f"against `resident`. Published for others: 0.82 to 0.91 of the base's speed.\n",
        "| batch | tokens/s | of the base's speed | CPU time a token | loads |",
        "|---|---:|---|---|---:|",
    ]
    for name, cell in result["summary"].items():
        speed, cpu = cell["tokens_per_s"], cell["cpu_s_per_token"]
        lines.append(
            f"| {name} | {speed['median']:,.0f} | {spread(speed['ratio'])} | {spread(cpu['ratio'])} | {cell['loads']} |"
        )
    return "\n".join(lines) + "\n"


def chaos_section(result: Result, conditions: str) -> str:
    """What came of the requests, and how long each fault was felt."""
    recovered_s = sorted(one["recovery_s"] for one in result["events"] if one["recovery_s"] is not None)
    outcomes = ", ".join(f"{count:,} {name}" for name, count in result["outcomes"].items())
    lines = [
        f"## Three gateways in which something fails all the time\n\n{conditions}",
        f"{result['requests']:,} requests, {result['ended']:,} ended ({outcomes}); {result['wrong_answers']} wrong "
        f"answers; {result['availability']:.2%} were answered. Verdict: "
        f"{'; '.join(result['wrong']) or 'as it must be'}.\n",
        "| after | seconds until requests were answered again |",
        "|---|---:|",
    ]
    for one in result["events"]:
        shown = "not in the run" if one["recovery_s"] is None else f"{one['recovery_s']:.2f}"
        lines.append(f"| {one['what']} at {one['at_s']:.0f} s | {shown} |")
    if recovered_s:
        lines.append(f"\nThe longest took {recovered_s[-1]:.2f} s.")
    return "\n".join(lines) + "\n"


def rolling_section(result: Result, conditions: str) -> str:
    """Requests that failed while all was replaced."""
    verdict = "met" if not result["failed"] else "**missed**"
    lines = [
        f"## Everything replaced under load\n\n{conditions}",
        f"{result['requests']:,} requests, {result['failed']} failed (target 0 {verdict}).\n",
        "| replaced | seconds | answers meanwhile | failures |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {one['what']} | {one['took_s']:.1f} | {one['answers']:,} | {one['failures']} |" for one in result["steps"]
    ]
    return "\n".join(lines) + "\n"


_SECTIONS = {
    "told": timing_section,
    "refusals": refusals_section,
    "ratios": noisy_section,
    "summary": adapters_section,
    "availability": chaos_section,
    "steps": rolling_section,
}


def operations_section(result: Result, conditions: str) -> str:
    """Choose by what the file holds."""
    return next(section(result, conditions) for key, section in _SECTIONS.items() if key in result)
