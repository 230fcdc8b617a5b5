"""What a page is made of, whatever it is written as."""

from dataclasses import dataclass

from chiasm.reporting.numbers import NUMBERS, Number


@dataclass(frozen=True)
class Value:
    """A number with what it is called and where it comes from."""

    number: Number
    value: float | None

    @property
    def text(self) -> str:
        """With its unit."""
        return self.number.shown(self.value)


Content = str | Value


def value(key: str, of: float | None) -> Value:
    """The number of this key."""
    return Value(NUMBERS[key], of)


@dataclass(frozen=True)
class Table:
    """Rows below a head. `marks` are rows that ask for attention, by number."""

    head: tuple[str, ...]
    rows: tuple[tuple[Content, ...], ...]
    title: str = ""
    note: str = ""
    marks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    rows: tuple[tuple[str, Content], ...]


@dataclass(frozen=True)
class Bars:
    """One bar per row, made of parts in the order of their first appearance."""

    title: str
    rows: tuple[tuple[str, tuple[tuple[str, Value], ...]], ...]


@dataclass(frozen=True)
class Lines:
    """Curves of one unit over a count."""

    title: str
    across: str
    series: tuple[tuple[str, tuple[tuple[float, Value], ...]], ...]


@dataclass(frozen=True)
class Details:
    """Something that few want to see at once."""

    title: str
    block: "Block"


Block = Table | Facts | Bars | Lines | Details


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    title: str
    blocks: tuple[Block, ...]
    text: str = ""
