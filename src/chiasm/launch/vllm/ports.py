"""Ports for servers that bind them only after they have loaded a model."""

import random
from pathlib import Path

from chiasm.errors import EngineStartError, InvalidSettingError
from chiasm.launch.server import bind

_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_240, 65_535
_NUM_TRIES = 200


def lasting_port(host: str) -> int:
    """A port that nobody listens on, and that the system gives to nobody who asks for any port.

    A server opens dozens of ports of the system's choice while it starts. One from the same range would be taken
    by then every so often, and a NIXL connector that does not get its port waits for ever.

    Raises:
        EngineStartError: None was found.
    """
    for port in random.sample(lasting_ports(_HANDED_OUT), _NUM_TRIES):
        try:
            bind(host, port).close()
        except InvalidSettingError:
            continue
        return port
    raise EngineStartError(f"No free port on {host}", hint="Is transfer.host an address of this machine?")


def lasting_ports(handed_out: Path) -> list[int]:
    """Ports outside of the system's range, which a file names by its ends; all, where there is none or too few."""
    try:
        first, last = map(int, handed_out.read_text().split())
    except (OSError, ValueError):
        first, last = _HIGHEST + 1, _HIGHEST
    found = [*range(_LOWEST, min(first, _HIGHEST + 1)), *range(max(last + 1, _LOWEST), _HIGHEST + 1)]
    return found if len(found) >= _NUM_TRIES else list(range(_LOWEST, _HIGHEST + 1))
