"""Limits, rules and what is kept, as tables."""

from collections.abc import Iterator

from chiasm.gateway.policy import Limit, ServerPolicy
from chiasm.reporting.blocks import Block, Details, Table, Value, value


def policy_blocks(policy: ServerPolicy) -> Iterator[Block]:
    """Rules first; they are what people ask for."""
    rules = tuple((one.about, one.says) for one in policy.rules)
    marks = frozenset(place for place, one in enumerate(policy.rules) if one.is_open)
    yield Table(("about", "rule"), rules, "Rules", "Marked: open to anybody.", marks)
    kept = tuple(
        (one.what, one.holds, one.where, _lifetime(one.lifetime_s), one.bound, ", ".join(one.deleted_by) or "-")
        for one in policy.kept
    )
    yield Table(("what", "holds", "where", "kept for", "bound", "deleted by"), kept, "What is kept")
    limits = tuple((one.setting, _limit(one), one.meaning) for one in policy.limits)
    yield Details("All limits", Table(("setting", "value", "meaning"), limits))


def _lifetime(lifetime_s: float | None) -> Value | str:
    return "no limit of time" if lifetime_s is None else value("lifetime", lifetime_s)


def _limit(limit: Limit) -> Value:
    key = "limit_bytes" if limit.setting.endswith("_bytes") else "limit_s" if limit.setting.endswith("_s") else "limit"
    return value(key, limit.value)
