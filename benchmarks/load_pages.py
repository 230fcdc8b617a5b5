"""What the load generator was measured to do, as Markdown."""

from typing import Any

Row = dict[str, Any]


def accuracy_table(result: Row) -> str:
    """Reported against told, the stall, the aimed rate, and what a request costs."""
    lines = [
        f"A server of known delays; allowed is {result['allowed']}.\n",
        "| figure | told | reported, median | |",
        "|---|---:|---:|---|",
    ]
    for row in result["accuracy"]:
        for name in ("ttft", "wire_ttft", "tpot"):
            one = row[name]
            verdict = "met" if one["is_allowed"] else "**missed**"
            lines.append(f"| {name} | {one['told_ms']:g} ms | {one['p50_ms']:.2f} ms | {verdict} |")
    stall, sustained = result["stall"], result.get("sustained")
    lines.append(
        f"\nThe server stalled for {stall['stall_s']:g} s, in which {stall['came_in_the_stall']:.0f} requests came; "
        f"{stall['waited_more_than_50_ms']} are in the tail, the longest with {stall['longest_s']:.2f} s.\n"
    )
    if sustained is not None:
        problems = "; ".join(sustained["problems"]) or "none"
        lines.append(
            f"At {sustained['asked_per_s']:,} requests a second, one client process sends with a lag of "
            f"{sustained['lag_p99_ms']:.2f} ms (99th percentile) and uses {sustained['client_cpu_share']:.0%} of a "
            f"core; problems: {problems}. The server beside it answers {sustained['served_per_s']:,.0f} a second.\n"
        )
    lines += [
        "| closed loop | requests/s | MB/s of bodies | a core of the client could: requests/s | MB/s |",
        "|---" * 5 + "|",
    ]
    for name, one in result["cost"].items():
        lines.append(
            f"| {name} | {one['requests_per_s']:,.0f} | {one['body_mb_per_s']:,.0f} | "
            f"{one['requests_per_s_and_core']:,.0f} | {one['body_mb_per_s_and_core']:,.0f} |"
        )
    cpu = ", ".join(f"{name} {value:.2f} ms" for name, value in result["cpu_ms_per_request"].items())
    return "\n".join(lines) + f"\n\nCPU for a request of text: {cpu}.\n"


def agreement_table(result: Row) -> str:
    """Two tools on one server."""
    lines = [
        f"The same bodies at the same rate to the same server in turns, {len(result['rounds'])} rounds; medians.\n",
        "| figure | chiasm bench | AIPerf | |",
        "|---|---:|---:|---|",
    ]
    for name, one in result["figures"].items():
        verdict = "agree" if one["agree"] else "**differ**"
        lines.append(f"| {name} | {one['chiasm_bench_ms']:.2f} ms | {one['aiperf_ms']:.2f} ms | {verdict} |")
    read = result["problem"] or "AIPerf reads all files that chiasm bench writes in its form."
    return "\n".join(lines) + f"\n\n{read}\n"
