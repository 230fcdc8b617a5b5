"""Versions of the worker contract: which ones work together, and what is said where they do not.

A gateway and a worker whose versions are neighbours speak the older of the two. Fields that a peer does not know are
ignored and those that it does not send have defaults, so that a version only ever adds fields. What must not be ignored
is named in `Extension.requires`. Workers are upgraded before gateways: docs/guides/upgrade.md.
"""

from chiasm.errors import ContractVersionError

CONTRACT_VERSION = 2
"""Raised by one when a field is added that matters, or goes."""

HANDLE_VERSION = 1
"""Of what handles say of tensors. Raised when a tensor's layout changes; workers take no other."""

CONTRACT_HEADER = "chiasm-contract"
"""With `GET /info` a gateway says its version, and the worker answers in the one that they speak."""

UNSAID_VERSION = 1
"""Of a peer that does not say it, as those of version 1 did not."""


def check_worker(name: str, version: int) -> None:
    """Raise `ContractVersionError` for a worker that is no neighbour of this gateway."""
    if abs(version - CONTRACT_VERSION) > 1:
        first = f"worker '{name}'" if version < CONTRACT_VERSION else "this gateway"
        raise _refusal(f"Worker '{name}' speaks version {version}", "gateway", first)


def check_gateway(version: int, param: str | None = None) -> None:
    """Raise `ContractVersionError` for a gateway that is no neighbour of this worker. `param` is where it says so."""
    if abs(version - CONTRACT_VERSION) > 1:
        first = "the gateway" if version < CONTRACT_VERSION else "this worker"
        raise _refusal(f"The gateway speaks version {version}", "worker", first, param)


def version_to_speak(said: str | None) -> int:
    """The version in which a worker answers a gateway that has sent this as `CONTRACT_HEADER`.

    Raises:
        ContractVersionError: It is no neighbour's, or no number.
    """
    if said is not None and not (said.isascii() and said.isdigit() and len(said) <= 6):
        raise ContractVersionError("The gateway's contract version is no number", hint="Is it a Chiasm gateway?")
    version = UNSAID_VERSION if said is None else int(said)
    check_gateway(version)
    return min(version, CONTRACT_VERSION)


def _refusal(who: str, we: str, first: str, param: str | None = None) -> ContractVersionError:
    return ContractVersionError(
        f"{who} of the worker contract; this {we} speaks {CONTRACT_VERSION} and takes "
        f"{CONTRACT_VERSION - 1} to {CONTRACT_VERSION + 1}",
        hint=f"Upgrade {first} first, by one contract version at a time",
        param=param,
    )
