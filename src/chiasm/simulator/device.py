"""A device and what happens on it at the moment, for work that slows other work down."""

from collections.abc import Callable
from dataclasses import dataclass, field

from chiasm.simulator.calibration import Interference


class Company:
    """Of the devices of one host, those on which somebody encodes at the moment, and who wants to know.

    A block inside which somebody does; any number at once.
    """

    def __init__(self, step_by_encode: float = 0.0) -> None:
        """`step_by_encode` is how much longer steps take meanwhile."""
        self._step_by_encode = step_by_encode
        self._num_encoding = 0
        self._watching: dict[Callable[[], None], None] = {}  # in order: what happens must not hang on addresses

    @property
    def slower(self) -> float:
        """How much longer steps take now."""
        return self._step_by_encode if self._num_encoding else 0.0

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *_: object) -> None:
        self._count(-1)

    def _count(self, by: int) -> None:
        before = self.slower
        self._num_encoding += by
        if before != self.slower:
            for on_change in list(self._watching):
                on_change()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called when `slower` changes."""
        if self._step_by_encode:
            self._watching[on_change] = None

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """End that. Harmless where it was not begun."""
        self._watching.pop(on_change, None)


@dataclass
class Device:
    """What several workers may share. Counts are of this moment.

    Attributes:
        company: What is beside it on its host; by default nothing is.
        num_residents: Encoder processes beside the engine.
        num_encoding: Those of them that compute.
        num_engines_busy: Engines that compute.
        encoding: A block inside which an encoder counts as computing; any number at once.
        computing: The same of an engine.
    """

    interference: Interference
    num_residents: int = 0
    num_encoding: int = 0
    num_engines_busy: int = 0
    company: Company = field(default_factory=Company)

    def step_factor(self, num_media: int) -> float:
        """How much longer a decode step takes, with so many pictures in work in the engine's own process."""
        found = self.interference
        factor = 1.0 + (found.resident if self.num_residents else 0.0)
        factor += found.step_by_encode if self.num_encoding else 0.0
        return (factor + (found.engine_by_media if num_media else 0.0)) * (1.0 + self.company.slower)

    def prefill_factor(self) -> float:
        """How much longer prompts take."""
        return 1.0 + (self.interference.prefill_by_encoder if self.num_residents else 0.0)

    def encode_factor(self) -> float:
        """How much longer an encoder beside the engine takes."""
        return 1.0 + (self.interference.encode_by_engine if self.num_engines_busy else 0.0)

    def media_factor(self) -> float:
        """How much longer media work takes in the engine's own process."""
        return 1.0 + (self.interference.media_by_engine if self.num_engines_busy else 0.0)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called when steps on it begin to take longer, or no longer do."""
        if self.interference.step_by_encode:
            self._watching[on_change] = None
        self.company.watch(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """End that. Harmless where it was not begun."""
        self._watching.pop(on_change, None)
        self.company.unwatch(on_change)

    def count_encoding(self, by: int) -> None:
        """So many more encoders compute."""
        had_any = self.num_encoding > 0
        self.num_encoding += by
        if had_any != (self.num_encoding > 0):
            for on_change in self._watching:
                on_change()

    def __post_init__(self) -> None:
        self._watching: dict[Callable[[], None], None] = {}  # in order: what happens must not hang on addresses
        self.encoding = _Encoding(self)
        self.computing = _Computing(self)


class _Encoding:
    """A block. Not a generator: it stands around all that is computed."""

    __slots__ = ("_device",)

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._device.count_encoding(1)

    def __exit__(self, *_: object) -> None:
        self._device.count_encoding(-1)


class _Computing:
    """Likewise."""

    __slots__ = ("_device",)

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._device.num_engines_busy += 1

    def __exit__(self, *_: object) -> None:
        self._device.num_engines_busy -= 1


class Busy:
    """Seconds that a worker has worked, by kind of work. Those of media threads add up."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("media", "encode", "prefill", "decode"), 0.0)

    def add(self, what: str, seconds: float) -> None:
        """Count work as done."""
        self._seconds[what] += seconds

    def shares(self, elapsed_s: float) -> dict[str, float]:
        """Of the time, for the kinds that it did at all."""
        return {what: seconds / elapsed_s for what, seconds in self._seconds.items() if seconds and elapsed_s}
