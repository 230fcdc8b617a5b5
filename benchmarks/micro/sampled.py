"""Where CPU time goes, by samples of the stack: unlike one that traces, it makes no call look dearer than it is."""

import signal
from collections import Counter
from pathlib import Path
from types import FrameType

_INTERVAL_S = 0.001


class Sampled:
    """Samples the main thread of this process, each millisecond of its CPU time, inside a block.

    Attributes:
        modules: Samples by the module whose code ran; what C code took counts for whoever called it.
        rooms: By the innermost module of the package, whatever libraries ran on its behalf.
        functions: By function.
    """

    def __init__(self, package: str = "chiasm") -> None:
        self._package = package
        self.modules: Counter[str] = Counter()
        self.rooms: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()

    def __enter__(self) -> "Sampled":
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def table(self, us: float, which: Counter[str], most: int) -> str:
        """The greatest parts of `us` microseconds."""
        total = sum(which.values())
        return "\n".join(f"{us * count / total:8.1f} us  {name}" for name, count in which.most_common(most))

    def _note(self, _: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.modules[_module(frame)] += 1
        self.functions[f"{_module(frame)}.{frame.f_code.co_qualname}"] += 1
        while frame is not None and not _module(frame).startswith(self._package):
            frame = frame.f_back
        self.rooms["the loop" if frame is None else _module(frame)] += 1


def _module(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    return name or Path(frame.f_code.co_filename).stem
