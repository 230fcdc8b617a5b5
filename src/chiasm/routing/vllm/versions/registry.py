"""Which versions of vLLM are known."""

import re

from chiasm.errors import EngineStartError
from chiasm.routing.vllm.versions.base import Version

KNOWN = ("0.32",)
"""Releases that the test suite runs against."""


def version_for(found: str, assumed: str = "") -> Version:
    """The adapter for a server's version, or for `assumed`, when the operator says that it behaves like that one.

    Raises:
        EngineStartError: Nobody has tried this version.
    """
    match = re.match(r"\d+\.\d+", assumed or found)
    release = match[0] if match else assumed or found
    if release == "0.32":
        from chiasm.routing.vllm.versions.v0_32 import Version032

        return Version032()
    raise EngineStartError(
        f"vLLM {found} is not a version that Chiasm was tried with" + (f", nor is {assumed}" if assumed else ""),
        hint=f"Install one of {', '.join(KNOWN)}, or set vllm.assume_version='{KNOWN[-1]}' to use that one's calls at "
        "your own risk; then run `chiasm doctor --engine vllm`",
    )
