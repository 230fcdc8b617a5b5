"""Numbers of workers on the command line, against the topology that is to have them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from chiasm.errors import InvalidSettingError

if TYPE_CHECKING:
    from chiasm.settings import Settings

_COUNTS = {
    "local": (),
    "agg": ("workers",),
    "auto": ("workers",),
    "e-pd": ("encoders", "prefills"),
    "e-p-d": ("encoders", "prefills", "decodes"),
}
_TOPOLOGY_OF = {"workers": "agg or auto", "encoders": "e-pd", "prefills": "e-pd", "decodes": "e-p-d"}


def check_counts(settings: "Settings", given: Mapping[str, int | None]) -> None:
    """See that the topology has every kind of worker of which a number was given.

    Raises:
        InvalidSettingError: It has not, or the workers run already, so that the number would do nothing.
    """
    topology = settings.routing.topology
    if settings.engine.kind == "vllm" and settings.vllm.workers_file:
        _check_none(settings.vllm.workers_file, given)
    has = _COUNTS[topology]
    if topology == "auto" and settings.engine.kind == "vllm":
        has = ("workers", "encoders")
    for kind, count in given.items():
        if count is not None and kind not in has:
            counted = " and ".join(f"--{one}" for one in has) or "no worker processes"
            raise InvalidSettingError(
                f"--{kind} {count} is without effect: the topology '{topology}' has {counted}",
                hint=f"Add --topology {_TOPOLOGY_OF[kind]}, or leave it out.",
            )


def _check_none(workers_file: str, given: Mapping[str, int | None]) -> None:
    for kind, count in given.items():
        if count is not None:
            raise InvalidSettingError(
                f"--{kind} {count} is without effect: {workers_file} names the workers, which run already",
                hint="Leave it out, and list every server in the file; or leave out the file to have servers started.",
            )
