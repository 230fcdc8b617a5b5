"""The file that names vLLM servers which run already.

[[workers]]
url = "http://10.0.0.7:8000"
roles = ["encode"]
name = "encode-a"                # none: host and port
kv_events = "tcp://10.0.0.7:5557"  # none: it does not say what its cache evicts
kv_replay = "tcp://10.0.0.7:5657"  # none: events that get lost are lost
kv_bootstrap = "http://10.0.0.7:8998"  # of a server that prefills for others over Mooncake
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidSettingError
from chiasm.protocol.worker import Role
from chiasm.routing.remote.connection import endpoint_of
from chiasm.settings.paths import written_path

_EXAMPLE = 'Write [[workers]] with url = "http://host:port" and roles = ["encode"] or ["prefill", "decode"] for each'


_Endpoint = Annotated[
    str, Meta(pattern=r"^(tcp://[^:/\s*]+:[0-9]{1,5}|tcp://\[[0-9a-fA-F:]+\]:[0-9]{1,5}|ipc:///\S+)?$")
]


class ListedWorker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server. With `encode` among its roles, one that prefills can take pixels as well.

    `data_parallel` is its `--data-parallel-size`: each rank becomes a worker. `kv_bootstrap` is the address of its
    `VLLM_MOONCAKE_BOOTSTRAP_PORT`, where it hands keys and values over by Mooncake. `kv_events` and `kv_replay` are the
    endpoints of its `--kv-events-config` as they are reached from here; each rank has the next port. `videos` says that
    it runs with `VLLM_MEDIA_CONNECTOR=chiasm`, and so takes frames of videos.
    """

    url: str
    roles: Annotated[tuple[Role, ...], Meta(min_length=1)]
    name: str = ""
    data_parallel: Annotated[int, Meta(ge=1, le=256)] = 1
    videos: bool = False
    kv_events: _Endpoint = ""
    kv_replay: _Endpoint = ""
    kv_bootstrap: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workers: Annotated[tuple[ListedWorker, ...], Meta(min_length=1)]


def read_workers(path: str) -> Sequence[ListedWorker]:
    """Read the file; each worker has a name of its own then. Raises `InvalidSettingError`."""
    try:
        document = tomllib.loads(written_path(path, "vllm.workers_file").read_text("utf-8"))
        listed = msgspec.convert(document, _File).workers
    except (OSError, ValueError) as error:  # msgspec's and tomllib's errors are ones
        raise InvalidSettingError(f"Cannot read workers from {path}: {error}", hint=_EXAMPLE) from error
    for one in listed:
        _check_address(path, one.url)
        if one.kv_bootstrap:
            _check_address(path, one.kv_bootstrap)
        if one.kv_replay and not one.kv_events:
            raise InvalidSettingError(f"{path}: kv_replay of {one.url} goes with kv_events", hint="Give it both")
        if one.data_parallel > 1 and "ipc:" in one.kv_events + one.kv_replay:
            raise InvalidSettingError(f"{path}: the engines of {one.url} publish on ports", hint="Use tcp://host:port")
    named = [msgspec.structs.replace(one, name=one.name or _name(one.url)) for one in listed]
    for what, values in (("name", [one.name for one in named]), ("url", [one.url for one in named])):
        if twice := [value for value in values if values.count(value) > 1]:
            raise InvalidSettingError(f"{path} has two workers with the {what} '{twice[0]}'", hint="Each needs its own")
    return named


def _check_address(path: str, url: str) -> None:
    try:
        endpoint_of(url)
    except InvalidSettingError as error:
        raise InvalidSettingError(
            f"{path}: '{url}' is no address of a server",
            hint="Use 'http://host:port' (https is not supported) or 'unix:/path'",
        ) from error


def _name(url: str) -> str:
    """Host and port, or a socket's file name."""
    if url.startswith("unix:"):
        return Path(url.removeprefix("unix:")).name
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or url
