"""A simulation as a picture: stages of the first requests, in the trace format that Chrome and Perfetto read."""

from pathlib import Path

import msgspec

from chiasm.errors import InvalidSettingError

_MICROSECONDS = 1e6


class Timeline:
    """Collects stages of the first `max_requests` requests. Hand `see` to `simulate` as `on_span`."""

    def __init__(self, max_requests: int = 500) -> None:
        self._max_requests = max_requests
        self._events: list[dict[str, object]] = []
        self._workers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._events)

    def see(self, worker: str, stage: str, start_s: float, end_s: float, request: int) -> None:
        """A stage of a request is over."""
        if request >= self._max_requests:
            return
        process = self._workers.setdefault(worker, len(self._workers) + 1)
        event = {"name": stage, "cat": stage, "pid": process, "tid": request, "args": {"request": request}}
        begin = {**event, "ph": "X", "ts": start_s * _MICROSECONDS, "dur": (end_s - start_s) * _MICROSECONDS}
        self._events.append(begin)

    def save(self, path: Path) -> None:
        """Write the file; one process for each worker, one line in it for each request.

        Raises:
            InvalidSettingError: It cannot be written.
        """
        names: list[dict[str, object]] = [
            {"name": "process_name", "ph": "M", "pid": process, "args": {"name": worker}}
            for worker, process in self._workers.items()
        ]
        try:
            path.write_bytes(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": [*names, *self._events]}))
        except OSError as error:
            raise InvalidSettingError(f"'{path}' cannot be written: {error.strerror}") from error
