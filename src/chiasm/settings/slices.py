"""Short slices: a thread that wakes for a little work takes a core at once from one that computes for long.

Linux lets a thread that wakes wait until the running one has had its slice, 1.4 ms on two cores and up to the next
tick, 4 ms on many systems. A request changes threads some ten times before its first token. From Linux 6.12 on, a
thread may ask for slices of its own, and one with a shorter slice than the running thread's does not wait. What share
of a core each gets in the long run stays as it is.

Never a reason to fail: where the system refuses, or knows nothing of it, slices stay as they are.
"""

import ctypes
import platform
import struct

_ATTRIBUTES = struct.Struct("@IIQiIQQQII")  # struct sched_attr
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_RESET_ON_FORK = 1
_USUAL_POLICIES = (0, 3)  # SCHED_OTHER and SCHED_BATCH: others have no slices


def shorten_thread_slices(slice_s: float) -> bool:
    """Give the calling thread slices of its own; threads that it starts have the system's.

    Says whether the system took it. Linux before 6.12 does, and leaves slices as they are. A thread that goes before
    others (of negative niceness) is not asked for: with this, all that it starts would be of niceness 0.

    Args:
        slice_s: 0.0001 to 0.1; 0: nothing is changed.
    """
    return bool(slice_s) and _set(slice_s)


class SwitchedSlices:
    """Slices of one thread that does now what others wait for, now what can wait: short ones, or the system's.

    To be used on that thread only. A thread should have short ones while it sleeps: what counts when it wakes are those
    that it had then.
    """

    def __init__(self, slice_s: float) -> None:
        """`slice_s` as of `shorten_thread_slices`; 0: nothing is changed."""
        self._slice_s = slice_s
        self._are_short = False

    def shorten(self) -> None:
        """Have short ones from now on."""
        if self._slice_s and not self._are_short:
            self._are_short = _set(self._slice_s)
            if not self._are_short:  # a system that refuses is not asked at every turn
                self._slice_s = 0.0

    def lengthen(self) -> None:
        """Have the system's from now on."""
        if self._are_short:
            _set(0.0)
            self._are_short = False


def _set(slice_s: float) -> bool:
    """Slices of the calling thread; 0: the system's."""
    numbers = _CALLS.get(platform.machine()) if platform.system() == "Linux" else None
    if numbers is None:
        return False
    set_number, get_number = numbers
    call, attributes = ctypes.CDLL(None, use_errno=True).syscall, ctypes.create_string_buffer(_ATTRIBUTES.size)
    if call(get_number, 0, attributes, _ATTRIBUTES.size, 0):
        return False
    size, policy, flags, niceness, priority, *_, least, most = _ATTRIBUTES.unpack(attributes.raw)
    if policy not in _USUAL_POLICIES or niceness < 0:
        return False
    wanted = (size, policy, flags | _RESET_ON_FORK, niceness, priority, round(slice_s * 1e9), 0, 0, least, most)
    attributes.raw = _ATTRIBUTES.pack(*wanted)
    return bool(call(set_number, 0, attributes, 0) == 0)


def slice_of_thread_s(thread: int = 0) -> float | None:
    """That of a thread, by its number, or of the calling one; None where the system does not say."""
    numbers = _CALLS.get(platform.machine()) if platform.system() == "Linux" else None
    attributes = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if numbers is None or ctypes.CDLL(None).syscall(numbers[1], thread, attributes, _ATTRIBUTES.size, 0):
        return None
    return _ATTRIBUTES.unpack(attributes.raw)[5] / 1e9 or None
