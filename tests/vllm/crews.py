"""Groups of servers that the tests share: each is started when a test first wants it, and none twice."""

import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from chiasm.launch.vllm.installed import installed_vllm
from tests.vllm.fleets import Fleet, fleet
from tests.vllm.gateways import Gateway, gateway
from tests.vllm.logs import heard
from tests.vllm.servers import vllm_python
from tests.vllm.towerless import Towerless, towerless

MARKS = [
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not vllm_python().exists(), reason="no environment with vLLM: run `make test-vllm`"),
]
"""Of every module here. `pytest.mark.vllm(is_last=True)` on a test that takes a server away from its crew."""
ORDER = ("aggregated", "fleet", "split", "towerless", "disaggregated")
"""In which the crews' tests run, whichever files they are in."""
OPERATOR = "operator"
"""Key of the gateways of crews that Chiasm starts."""
_MAX_SERVERS = 4
OPERATED = f'gateway.admin_keys=["{OPERATOR}"]'
_UNI = 'vllm.extra_arguments=["--distributed-executor-backend", "uni"]'


Crew = TypeVar("Crew")


class _Running(NamedTuple):
    num_servers: int
    crew: Any
    closing: ExitStack


class Crews:
    """What runs. Those wanted longest ago make room when there would be too many servers, engines counted apart."""

    def __init__(self, max_servers: int = _MAX_SERVERS) -> None:
        self._max_servers = max_servers
        self._running: OrderedDict[str, _Running] = OrderedDict()

    def lend(self, name: str, num_servers: int, opening: Callable[[], AbstractContextManager[Crew]]) -> Crew:
        """The crew of that name, running; `opening` starts and stops it."""
        found = self._running.get(name)
        if found is None:
            while self._running and num_servers + self._num_servers() > self._max_servers:
                self.dismiss(next(iter(self._running)))
            closing = ExitStack()
            found = self._running[name] = _Running(num_servers, closing.enter_context(opening()), closing)
        self._running.move_to_end(name)
        crew: Crew = found.crew
        return crew

    def dismiss(self, name: str) -> None:
        """End a crew, if it runs; whoever wants it later gets another."""
        found = self._running.pop(name, None)
        if found is not None:
            found.closing.close()

    def close(self) -> None:
        """End all of them."""
        while self._running:
            self.dismiss(next(reversed(self._running)))

    def _num_servers(self) -> int:
        return sum(one.num_servers for one in self._running.values())


class Split:
    """An encoder and a server for the rest, split over two processes, which may encode when no encoder delivers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = (
            "engine.kind=vllm",
            "routing.topology=e-pd",
            f"routing.worker_token={secrets.token_hex(8)}",
            OPERATED,
        )
        self._closing = ExitStack()

    def __enter__(self) -> "Split":
        self.log = self._closing.enter_context(heard())
        os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
        try:
            self.started = self._closing.enter_context(gateway(*self._own, "vllm.tensor_parallel=2"))
            self.attached = self._closing.enter_context(self._attached())
        except BaseException:
            self._closing.close()
            raise
        finally:
            del os.environ["VLLM_LOGGING_LEVEL"]
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _attached(self) -> AbstractContextManager[Gateway]:
        """Another gateway over the same servers, which never asks the second one to encode, nor waits for the first."""
        processes = self.started.backend.supervisor._processes
        roles = [("e", "encode-0", '["encode"]'), ("pd", "prefill-0", '["prefill", "decode"]')]
        listed = {name: (processes[process].address, its) for name, process, its in roles}
        alone = ("routing.local_encode=never", "routing.wait_for_worker_s=0")
        return gateway(*self._own, workers_file(self._folder, listed), *alone)


def workers_file(folder: Path, listed: dict[str, tuple[str, str]]) -> str:
    """The setting that names a file of running servers: for each name its address and its roles."""
    path = folder / "workers.toml"
    tables = [
        f'[[workers]]\nname = "{name}"\nurl = "{url}"\nroles = {roles}\n' for name, (url, roles) in listed.items()
    ]
    path.write_text("\n".join(tables))
    return f"vllm.workers_file={path}"


def aggregated_crew(crews: Crews) -> Gateway:
    """One whole server of two data-parallel engines, started by Chiasm."""
    own = ("engine.kind=vllm", "routing.topology=agg", "routing.workers=1", "vllm.data_parallel=2", _UNI, OPERATED)
    return crews.lend("aggregated", 2, lambda: gateway(*own))


def fleet_crew(crews: Crews, folder: Callable[[str], Path]) -> Fleet:
    """Servers that only the tests speak to."""
    return crews.lend("fleet", 3, lambda: fleet(folder("fleet")))


def split_crew(crews: Crews, folder: Callable[[str], Path]) -> Split:
    """See `Split`."""
    return crews.lend("split", 3, lambda: Split(folder("split")))


def towerless_crew(crews: Crews, folder: Callable[[str], Path]) -> Towerless:
    """Servers of a model that prefills without its vision tower; see `Towerless`."""
    return crews.lend("towerless", 3, lambda: towerless(folder("towerless")))


def disaggregated_crew(crews: Crews, settings: Callable[[], tuple[str, ...]]) -> Gateway:
    """A server for each stage, started by Chiasm with further settings; keys and values go over NIXL."""
    if "nixl" not in installed_vllm(str(vllm_python())).packages:
        pytest.skip("vLLM's environment has no NIXL")
    own = ("engine.kind=vllm", "routing.topology=e-p-d", "routing.local_encode=never", OPERATED)
    return crews.lend("disaggregated", 3, lambda: gateway(*own, *settings()))


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests of one crew next to each other, those that take a server away after the others."""

    def place(item: pytest.Item) -> tuple[int, bool]:
        wanted = [ORDER.index(name) for name in getattr(item, "fixturenames", ()) if name in ORDER]
        return max(wanted, default=-1), any(mark.kwargs.get("is_last") for mark in item.iter_markers("vllm"))

    return sorted(items, key=place)
