"""Sections of docs/performance.md about pooling: peers side by side, and one endpoint against two hops."""

from typing import Any

from benchmarks.verdicts import judged, spread

PEERS = {
    "chiasm": "Chiasm",
    "hf_fixed": "transformers, padded to 256",
    "hf_dynamic_4": "transformers, sorted, 4 a batch",
    "hf_dynamic_8": "transformers, sorted, 8 a batch",
    "hf_dynamic_20": "transformers, sorted, 20 a batch",
    "sentence_transformers": "sentence-transformers",
    "infinity": "infinity-emb, torch",
    "vllm": "vLLM CPU, eager",
}
# what the project set out to reach: against fixed padding, the best dynamic padding, the best of all others
FIXED_TARGET, DYNAMIC_TARGET, PEER_TARGET = 5.0, 1.3, 1.2
THROUGHPUT_TARGETS = {"text": 3.5, "pictures": 4.0}
MOST_P50 = 0.3  # at 16 callers


def _target(name: str, ratios: dict[str, Any]) -> float | None:
    """Of one peer; among paddings and among all others only the best one is held against a target."""
    if name == "hf_fixed":
        return FIXED_TARGET
    best_dynamic = min((one for one in ratios if one.startswith("hf_dynamic")), key=lambda one: _speed(ratios, one))
    others = [one for one in ratios if not one.startswith("hf_")]
    if name == best_dynamic:
        return DYNAMIC_TARGET
    return PEER_TARGET if others and name == min(others, key=lambda one: _speed(ratios, one)) else None


def _speed(ratios: dict[str, Any], name: str) -> float:
    return float(ratios[name]["speed"]["median"])


def peers_section(result: dict[str, Any], conditions: str) -> str:
    """Pairs a second of one cross-encoder behind every peer."""
    versions = ", ".join(f"{name} {one}" for by in result["versions"].values() for name, one in by.items())
    lines = [
        f"## Pairs a second of a reranker\n\n{conditions}",
        f"MiniLM with a head of one label, {result['dtype']}, {result['threads']} threads, 20 candidates a call, "
        f"without HTTP; all find the same scores. Versions: {versions}.\n",
        "| callers | peer | pairs/s | p50 | p95 | CPU ms a pair | Chiasm is x times as fast | by CPU time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell, entry in result["summary"].items():
        ratios = entry["ratios"]
        for name in sorted(entry["medians"], key=list(PEERS).index):
            figures, ratio, by_cpu = entry["medians"][name], "", ""
            if name in ratios:
                by_cpu = spread(ratios[name]["speed_by_cpu"])
                ratio = judged(ratios[name]["speed"], _target(name, ratios))
            lines.append(
                f"| {cell} | {PEERS[name]} | {figures['pairs_per_s']:.1f} | {1e3 * figures['p50_s']:.0f} ms | "
                f"{1e3 * figures['p95_s']:.0f} ms | {1e3 * figures['cpu_s_per_pair']:.2f} | {ratio} | {by_cpu} |"
            )
    return "\n".join(lines) + "\n"


def paths_section(result: dict[str, Any], conditions: str) -> str:
    """One endpoint from raw data to ranked answer, against a service around a fixed-padding model server."""
    what = result["what"]
    lines = [
        f"## One endpoint against two hops: {what}\n\n{conditions}",
        f"{result['items_a_call']} candidates a call over HTTP, {result['threads']} threads for the model on both "
        "sides. Two hops: a service that prepares and ranks, and transformers behind it (`benchmarks/legacy`).\n",
        "| | calls/s, one endpoint | two hops | times as many | p50 | p50, two hops | share | p95 | p95, two hops |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, entry in result["summary"].items():
        lines.append(_path_row(cell, "single endpoint", entry["medians"], entry, what))
        if "fast" in entry:
            lines.append(_path_row(f"{cell}, fast", "single endpoint, fast", entry["medians"], entry["fast"], what))
    if moved := [entry["fast"]["largest_difference"] for entry in result["summary"].values() if "fast" in entry]:
        lines.append(
            f'\nFast: `media.preparation = "fast"`. Its scores are at most {max(moved):.1g} from the two hops\'.'
        )
    return "\n".join(lines) + "\n"


def _path_row(cell: str, path: str, medians: dict[str, Any], compared: dict[str, Any], what: str) -> str:
    ours, theirs = medians[path], medians["two hops"]
    times = judged(compared["throughput"], THROUGHPUT_TARGETS[what])
    share = judged(compared["p50"], MOST_P50 if cell.startswith("16 ") else None, is_most=True)
    return (
        f"| {cell} | {ours['calls_per_s']:.2f} | {theirs['calls_per_s']:.2f} | {times} | "
        f"{1e3 * ours['p50_s']:.0f} ms | {1e3 * theirs['p50_s']:.0f} ms | {share} | "
        f"{1e3 * ours['p95_s']:.0f} ms | {1e3 * theirs['p95_s']:.0f} ms |"
    )


MODELS = {"text": "a reranker", "pictures": "an image ranker"}


def soak_section(result: dict[str, Any], conditions: str) -> str:
    """Requests without end, some of which fail or are left by their clients."""
    ends = ", ".join(f"{count:,} {name}" for name, count in sorted(result["ends"].items()))
    stays = ", ".join(f"{count} {what}" for what, count in result["stays"].items() if count) or "nothing"
    middle, last = (1e-6 * result["memory"][place][1] for place in (len(result["memory"]) // 2, -1))
    command = result["command"]
    return (
        f"## Pooling requests without end: {MODELS[command['model']]}\n\n{conditions}\n"
        f"{result['requests']:,} requests from {command['clients']} clients at once: {ends}. "
        f"Answers that differed, in any bit, from those of the same request alone: {result['different_answers']}. "
        f"Left of all of them: {stays}. "
        f"Resident memory: {middle:.1f} MB halfway, {last:.1f} MB in the end, "
        f"{result['rss_bytes_per_request']:+.1f} bytes a request. Wrong: {'; '.join(result['wrong']) or 'nothing'}.\n"
    )


def pooling_section(result: dict[str, Any], conditions: str) -> str:
    """Choose by what the file holds."""
    if "stays" in result:
        return soak_section(result, conditions)
    return paths_section(result, conditions) if "what" in result else peers_section(result, conditions)
