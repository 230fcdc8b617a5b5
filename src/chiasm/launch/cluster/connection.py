"""Joining a cluster of Ray's, or starting one on this machine."""

import contextlib
import math
import os
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from secrets import token_urlsafe
from typing import Any

import msgspec

from chiasm.errors import EngineStartError, MissingExtraError
from chiasm.launch.cluster.placement import ray_address
from chiasm.settings import Settings
from chiasm.settings.process import refuse_usage_statistics
from chiasm.settings.secret import hand_down_secrets

_STORE_BYTES = 80 * 2**20  # Ray's smallest: nothing of ours is in it
_CONNECT_TIMEOUT_S = 5.0
_HINT = "`ray status` on this machine says whether it is in a cluster; join one with `ray start --address=HOST:PORT`"


@contextlib.contextmanager
def joined(settings: Settings, needed_cpus: float) -> Iterator[Settings]:
    """Be a driver of the cluster inside the block; its actors end with it. Yields the settings to serve with.

    Args:
        settings: `cluster.address` says which. Without one, a cluster starts on this machine, with this process's
            secrets in its environment, and a workers' token where there is none.
        needed_cpus: What such a cluster must have in any case, whatever the machine has.

    Raises:
        MissingExtraError: Ray is not installed.
        EngineStartError: There is no such cluster, or this machine is not in it.
    """
    address = ray_address(settings.cluster.address)
    if find_spec("ray") is None:
        raise MissingExtraError("A cluster needs Ray", hint="pip install 'chiasm[ray]'")
    import ray

    refuse_usage_statistics()
    try:
        if address is not None:
            check_listens(address)
            _init(address=address)
        else:
            settings = _join_or_start(settings, needed_cpus)
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineStartError(
            f"Cannot join the cluster '{settings.cluster.address}': {type(error).__name__}", hint=_HINT
        ) from error
    try:
        yield settings
    finally:
        ray.shutdown()


def check_listens(address: str) -> None:
    """Look before Ray does, which tries again and again for minutes. Raises `OSError` when nobody listens there."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()


def _join_or_start(settings: Settings, needed_cpus: float) -> Settings:
    try:
        _init(address="auto")
    except ConnectionError:
        token = settings.routing.worker_token or token_urlsafe(24)  # Ray lets a node have no loopback address
        routing = msgspec.structs.replace(settings.routing, worker_token=token)
        settings = msgspec.structs.replace(settings, routing=routing)
        hand_down_secrets(settings)
        num_cpus = max(os.cpu_count() or 1, math.ceil(needed_cpus))
        _init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
        )
    return settings


def _init(**options: Any) -> None:
    import ray

    ray.init(configure_logging=False, logging_level="WARNING", **options)
