"""The records of client processes, as files."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from chiasm.bench.record import Record

RECORDS = "records.jsonl"


def records_file(plan: Path, part: int) -> Path:
    """Where a process leaves its records."""
    return plan / f"records-{part}.jsonl"


def write_records(file: Path, records: Iterable[Record]) -> None:
    """One line of JSON each."""
    encoder = msgspec.json.Encoder()
    file.write_bytes(b"".join(encoder.encode(record) + b"\n" for record in records))


def read_records(file: Path) -> list[Record]:
    """What `write_records` wrote."""
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in file.read_bytes().splitlines()]


def gathered(plan: Path, num_parts: int) -> list[Record]:
    """The records of all parts in the plan's order, now also in one file."""
    parts = [records_file(plan, part) for part in range(num_parts)]
    records = sorted((record for part in parts for record in read_records(part)), key=_index)
    write_records(plan / RECORDS, records)
    for part in parts:
        part.unlink()
    return records


def _index(record: Record) -> int:
    return record.index
