"""The gateway's process in an actor: no worker of its own, a fleet that its owner names, a word about its load."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from io import FileIO

import msgspec
import uvloop

from chiasm.errors import ChiasmError
from chiasm.gateway.autoscaling import autoscaling_levels
from chiasm.gateway.state import Gateway
from chiasm.launch.cluster.roster import RosterKeeper
from chiasm.launch.crew import Crew, EmbeddedCrew
from chiasm.launch.engine import Progress
from chiasm.launch.fleet import WorkerFleet
from chiasm.launch.local import LocalServer
from chiasm.launch.processes.messages import Failed, Load, Loading, MemberLoad, Order, Ready, Roster
from chiasm.launch.processes.owner import Reports, Stop
from chiasm.observability.logs import configure_logging
from chiasm.protocol.fleet import Fleetlike
from chiasm.settings import Settings
from chiasm.settings.slices import shorten_thread_slices

_REPORT_INTERVAL_S = 0.5


class RosterCrew(EmbeddedCrew):
    """No process of its own, nobody on this host: media travel in the calls."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.specs = ()
        self.crowding = 0.0
        self.shares_host = False


def crew_of(settings: Settings) -> Crew:
    """How the workers of rosters are spoken to."""
    if settings.engine.kind == "vllm":
        from chiasm.launch.vllm.crew import VllmRosterCrew

        return VllmRosterCrew(settings)
    return RosterCrew(settings)


def main() -> None:
    """Serve until the owner is gone or SIGTERM comes. Standard input has an order, then rosters."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = Reports()
    owner = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    order = msgspec.json.decode(owner.readline(), type=Order)
    configure_logging(order.settings.observability.log_level, order.settings.observability.log_format)
    shorten_thread_slices(order.settings.engine.short_slice_s)
    try:
        uvloop.run(_serve(order.settings, owner, report))
    except ChiasmError as error:
        report(Failed(error.code, error.message, error.hint))
        sys.exit(1)
    except asyncio.CancelledError:
        return


async def _serve(settings: Settings, owner: FileIO, report: Reports) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stop, roster, ending = asyncio.Event(), RosterKeeper(), Stop()
    ending.bind(loop, stop)
    loop.add_signal_handler(signal.SIGTERM, lambda: task.cancel() if stop.is_set() else stop.set())
    threading.Thread(target=_listen, args=(owner, loop, roster, ending), daemon=True).start()

    def start(settings: Settings, progress: Progress) -> WorkerFleet:
        return WorkerFleet(settings, progress, crew_of(settings), roster.keep)

    server = LocalServer(settings, lambda what, share: report(Loading(what, share)), start)
    reporting = asyncio.create_task(_report_load(server, roster, report))
    try:
        await server.serve(stop, lambda: report(Ready(server.address)))
    finally:
        reporting.cancel()
        await asyncio.wait([reporting])


def _listen(owner: FileIO, loop: asyncio.AbstractEventLoop, roster: RosterKeeper, stop: Stop) -> None:
    while line := owner.readline():
        with suppress(RuntimeError):  # the loop is closed: we are ending
            loop.call_soon_threadsafe(roster.put, msgspec.json.decode(line, type=Roster))
    stop.set()


async def _report_load(server: LocalServer, roster: RosterKeeper, report: Reports) -> None:
    while True:
        if server.gateway is not None:
            server.gateway.encoders_wanted = roster.encoders_wanted
            report(load_of(server.gateway))
        await asyncio.sleep(_REPORT_INTERVAL_S)


def load_of(gateway: Gateway) -> Load:
    """What a gateway over a fleet has under way."""
    levels = autoscaling_levels(gateway.admission, gateway.worker, gateway.settings.ttft_slo_s)
    assert isinstance(gateway.worker, Fleetlike), "a router stands before the fleet"
    return Load(
        levels=dict(levels),
        members={
            one.name: MemberLoad(one.state, one.num_encoding + one.num_prefilling + one.num_decoding)
            for one in gateway.worker.fleet_state().members
        },
    )


if __name__ == "__main__":
    main()
