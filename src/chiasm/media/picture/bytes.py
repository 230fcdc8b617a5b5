"""Reading numbers from data that may end too early, and walking it in a bounded number of steps."""

import struct

from chiasm.errors import MediaDecodeError


class ShortDataError(Exception):
    """The data ends inside its header. More bytes may settle it; for complete data it is a decode error."""


def numbers(layout: str, data: bytes | bytearray, offset: int) -> tuple[int, ...]:
    """Unpack integers at an offset. Raises `ShortDataError` when they lie beyond the end."""
    if offset < 0 or offset + struct.calcsize(layout) > len(data):
        raise ShortDataError
    return struct.unpack_from(layout, data, offset)


class StepLimit:
    """Counts the parts that a walk has seen.

    Headers are walked in Python; data made of millions of tiny parts must not hold the interpreter.
    """

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._num_steps = 0

    def step(self) -> None:
        """Count one part. Raises `MediaDecodeError` after the last that is allowed."""
        self._num_steps += 1
        if self._num_steps > self._max_steps:
            raise MediaDecodeError(f"The data has more than {self._max_steps} parts")
