"""Adapters for vLLM servers on this host: checked, and copied to where only Chiasm writes.

vLLM reads an adapter's files when it likes, also again after it had no room for them. What it reads must be what was
checked, so that it gets copies, under their revision as name.
"""

import secrets
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from chiasm.adapters.files import CONFIG_NAME, WEIGHTS_NAME, read_adapter
from chiasm.adapters.sizes import base_model
from chiasm.errors import AdapterError, LayoutMismatchError
from chiasm.protocol.adapters import AdapterInfo, AdapterLoad, AdapterRef
from chiasm.settings import AdapterSettings

LOAD_PATH = "/v1/load_lora_adapter"
UNLOAD_PATH = "/v1/unload_lora_adapter"


class AdapterCopies:
    """A folder of adapters by revision. Methods block; any thread may call them."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], names: Collection[str], settings: AdapterSettings
    ) -> None:
        """Take a folder of ours, and the model's `config.json` and names."""
        self._folder = folder
        self._config = config
        self._names = names
        self._settings = settings

    def place(self, load: AdapterLoad) -> AdapterInfo:
        """Check an adapter's files and have a copy of them. Raises `AdapterError`."""
        files = read_adapter(load.directory, base_model(self._config, self._names), self._settings)
        self._copy(files.revision, {CONFIG_NAME: files.config_data, WEIGHTS_NAME: files.data})
        return AdapterInfo(
            ref=AdapterRef(name=load.name, revision=files.revision, directory=files.directory),
            rank=files.config.r,
            targets=files.targets,
        )

    def ensure(self, ref: AdapterRef) -> None:
        """Have a copy of an adapter that a request means. Raises `LayoutMismatchError` where its files are others."""
        if self.path(ref.revision).is_dir():
            return
        found = self.place(AdapterLoad(name=ref.name, directory=ref.directory)).ref.revision
        if found != ref.revision:
            raise LayoutMismatchError(f"The files of adapter '{ref.name}' have revision {found}, not {ref.revision}")

    def path(self, revision: str) -> Path:
        """Where the copy of a revision is, or would be."""
        return self._folder / revision

    def _copy(self, revision: str, files: Mapping[str, bytes]) -> None:
        """All files at once, or none."""
        if self.path(revision).is_dir():
            return
        making = self._folder / f"{revision}.{secrets.token_hex(4)}"
        try:
            making.mkdir(parents=True, mode=0o700)
            for name, data in files.items():
                (making / name).write_bytes(data)
            making.rename(self.path(revision))
        except OSError as error:  # also when another call was faster
            if not self.path(revision).is_dir():
                raise AdapterError(f"The adapter cannot be copied for vLLM: {error.strerror}") from error
        finally:
            shutil.rmtree(making, ignore_errors=True)  # there only when it did not become the copy
