"""Fleets by name, as people write them: `agg:2`, `e-pd:1,1`."""

from collections.abc import Callable

from chiasm.errors import InvalidSettingError
from chiasm.simulator.cluster import Cluster, adaptive, aggregated, colocated, disaggregated, split

_Counts = tuple[int, ...]
_MAX_WORKERS = 100_000

_KINDS: dict[str, tuple[str, Callable[[_Counts], Cluster]]] = {
    "agg": ("agg:DEVICES", lambda counts: aggregated(*counts)),
    "auto": ("auto:DEVICES", lambda counts: adaptive(*counts)),
    "colocated": ("colocated:DEVICES,ENCODERS_EACH", lambda counts: colocated(counts[0], encoders=counts[1])),
    "e-pd": ("e-pd:ENCODERS,WORKERS", lambda counts: disaggregated(*counts)),
    "e-p-d": ("e-p-d:ENCODERS,PREFILLS,DECODES", lambda counts: split(*counts)),
}
FORMS = ", ".join(form for form, _ in _KINDS.values())


def fleet_named(text: str) -> Cluster:
    """The fleet that a text stands for.

    Raises:
        InvalidSettingError: It stands for none.
    """
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise InvalidSettingError(f"There is no fleet '{text}'", hint=f"Write one of: {FORMS}.")
    form, make = _KINDS[kind]
    counts = _counts(rest)
    if counts is None or len(counts) != form.count(",") + 1:
        raise InvalidSettingError(
            f"'{text}' is not a fleet", hint=f"Write {form}, each a whole number from 1 to {_MAX_WORKERS:,}."
        )
    if _num_workers(kind, counts) > _MAX_WORKERS:
        raise InvalidSettingError(
            f"'{text}' has {_num_workers(kind, counts):,} workers", hint=f"At most {_MAX_WORKERS:,} can be simulated."
        )
    return make(counts)


def _num_workers(kind: str, counts: _Counts) -> int:
    """Without making them."""
    return counts[0] * (1 + counts[1]) if kind == "colocated" else sum(counts)


def _counts(text: str) -> _Counts | None:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= len(str(_MAX_WORKERS)) for part in parts):
        return None
    counts = tuple(int(part) for part in parts)
    return counts if all(1 <= count <= _MAX_WORKERS for count in counts) else None
