"""An adapter's folder: found below an allowed root, read once with bounds, checked, and hashed."""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chiasm.adapters.config import LoraConfig, read_config
from chiasm.adapters.sizes import BaseModel
from chiasm.adapters.tensors import Stored, read_header
from chiasm.errors import AdapterError
from chiasm.settings import AdapterSettings
from chiasm.settings.paths import written_path

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_MAX_CONFIG_BYTES = 256 * 1024
_OUTSIDE = "The folder is not below one of the allowed roots"


@dataclass(frozen=True)
class AdapterFiles:
    """A checked adapter. `data` is the whole weights file, tensors count from `start`; `config_data` the other one."""

    directory: str
    revision: str
    config: LoraConfig
    stored: Stored
    config_data: bytes = field(repr=False)
    data: bytes = field(repr=False)
    start: int

    @property
    def targets(self) -> tuple[str, ...]:
        """Projections that it touches in any layer."""
        return tuple(sorted({place.target for place in self.stored}))


def read_adapter(directory: str, base: BaseModel, settings: AdapterSettings) -> AdapterFiles:
    """Read and check a folder with an adapter of a model. Blocks.

    What is checked is what is returned: files are opened once, after links are followed and judged by where they end.

    Raises:
        AdapterError: It is outside of the allowed roots, or not an adapter that can be served here.
    """
    root, folder = allowed_folder(directory, settings)
    config_data = _read(folder / CONFIG_NAME, root, _MAX_CONFIG_BYTES)
    config = read_config(config_data, base, settings.max_rank)
    data = _read(folder / WEIGHTS_NAME, root, settings.max_bytes)
    stored, start = read_header(data, base, config.r)
    digest = hashlib.sha256(hashlib.sha256(config_data).digest() + hashlib.sha256(data).digest())
    return AdapterFiles(str(folder), digest.hexdigest()[:32], config, stored, config_data, data, start)


def allowed_folder(directory: str, settings: AdapterSettings) -> tuple[Path, Path]:
    """The root that a folder is below, and the folder, both without links. Raises `AdapterError`."""
    try:
        path = Path(directory).expanduser()
        if "\0" in directory or not path.is_absolute():
            raise AdapterError("An adapter's folder is named by an absolute path")
        folder = path.resolve()
        roots = [written_path(root, "adapters.roots").resolve() for root in _roots(settings)]
    except (OSError, RuntimeError):  # a loop of links, or no such user
        raise AdapterError(_OUTSIDE) from None
    root = next((root for root in roots if folder.is_relative_to(root)), None)
    if root is None:
        raise AdapterError(_OUTSIDE, hint="adapters.roots lists them; the operator of the server sets it")
    return root, folder


def preloaded(settings: AdapterSettings) -> list[tuple[str, str]]:
    """Names and folders of the adapters that are there from the start. Raises `AdapterError` for one without either."""
    pairs = [entry.partition("=") for entry in settings.preload]
    if wrong := [
        entry for entry, (name, _, folder) in zip(settings.preload, pairs, strict=True) if not (name and folder)
    ]:
        raise AdapterError(f"'{wrong[0]}' is not NAME=DIR", hint="Write --adapter my-adapter=/path/to/its/folder")
    return [(name, str(written_path(folder, "adapters.preload").absolute())) for name, _, folder in pairs]


def check_folders(settings: AdapterSettings) -> None:
    """Look at the allowed roots, and whether the adapters that are there from the start have a config that can be read.

    Raises:
        AdapterError: One has none, or lies outside of the allowed roots.
        InvalidSettingError: A root cannot be one, which would end every later request for an adapter.
    """
    for text in settings.roots:
        written_path(text, "adapters.roots")
    for name, directory in preloaded(settings):
        root, folder = allowed_folder(directory, settings)
        try:
            _read(folder / CONFIG_NAME, root, _MAX_CONFIG_BYTES)
        except AdapterError as error:
            raise AdapterError(f"Adapter '{name}': {error.message}", hint=error.hint) from error


def _roots(settings: AdapterSettings) -> Sequence[str]:
    """The folders that the operator named one by one are allowed, too."""
    return (*settings.roots, *(folder for _, folder in preloaded(settings)))


def _read(path: Path, root: Path, max_bytes: int) -> bytes:
    try:
        resolved = path.resolve()
        if not resolved.is_relative_to(root):
            raise AdapterError(f"{path.name} leads outside of the allowed root")
        # Never waits on a pipe, never follows a link that appeared after the check.
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError):
        raise AdapterError(f"The folder has no readable {path.name}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(root):  # noqa: PTH115 - a magic link
            raise AdapterError(f"{path.name} leads outside of the allowed root")
        if not stat.S_ISREG(status.st_mode):
            raise AdapterError(f"{path.name} is not a regular file")
        if status.st_size > max_bytes:
            raise AdapterError(
                f"{path.name} has {status.st_size} bytes, more than {max_bytes}",
                hint="adapters.max_bytes bounds weights",
            )
        data = file.read(max_bytes + 1)
    if len(data) != status.st_size:
        raise AdapterError(f"{path.name} changes while it is read")
    return data
