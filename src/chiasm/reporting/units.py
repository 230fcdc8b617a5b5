"""Numbers with units, for people."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
NOTHING = "-"


def in_bytes(value: float | None) -> str:
    """Bytes with three digits, as in 1.25 GiB; a dash for None."""
    if value is None:
        return NOTHING
    size, number = abs(value), 0
    while size >= 999.5 and number < len(_UNITS) - 1:
        size, number = size / _STEP, number + 1
    return f"{'-' if value < 0 else ''}{_three_digits(size) if number else f'{size:.0f}'} {_UNITS[number]}"


def in_ms(value: float | None) -> str:
    """Milliseconds with three digits, as in 12.3 ms; seconds from ten thousand on."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 ms"
    return f"{_three_digits(value / 1e3)} s" if abs(value) >= 10_000 else f"{_three_digits(value)} ms"


def in_count(value: float | None) -> str:
    """A count, with thousands apart, or a rate with three digits."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else _three_digits(value)


def in_percent(value: float | None) -> str:
    """A share of 1."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
