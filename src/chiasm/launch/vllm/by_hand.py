"""One vLLM server started by hand, for gateways whose workers' file lists it."""

import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from chiasm.errors import EngineDeadError
from chiasm.launch.engine import Progress
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.server import clear_unix
from chiasm.launch.vllm.crew import VllmCrew, served_model
from chiasm.launch.worker import check_reachable
from chiasm.settings import Settings

_LOOK_INTERVAL_S = 0.2


def serve_vllm_worker(
    settings: Settings, spec: WorkerSpec, progress: Progress, on_ready: Callable[[str], None]
) -> None:
    """Run a server until SIGTERM or SIGINT.

    Args:
        settings: All sections.
        spec: The worker's name, roles and address.
        progress: Told how the start goes.
        on_ready: Called with the address once it answers.

    Raises:
        InvalidSettingError: The address is none or taken, or parallelism and devices do not fit.
        MissingExtraError: There is no vLLM to start.
        EngineStartError: It did not start.
        EngineDeadError: It ended by itself.
    """
    check_reachable(spec.address, settings.routing.worker_token)
    if spec.address.startswith("unix:"):
        clear_unix(spec.address.removeprefix("unix:"))
    crew = VllmCrew(_split_as(spec, settings), (spec,))
    with tempfile.TemporaryDirectory(prefix="chiasm-") as folder, closing(crew), _told_to_end() as end:
        process = crew.spawner(Path(folder), None)(spec)
        try:
            process.wait_ready(progress)
            on_ready(spec.address)
            while process.is_alive and not end.wait(_LOOK_INTERVAL_S):
                pass
            if not end.is_set():
                raise EngineDeadError(
                    f"vLLM server {spec.name} has ended by itself", hint="Its log: --set observability.log_level=debug"
                )
        finally:
            process.terminate()
            if not process.wait(settings.vllm.stop_timeout_s + 1.0):
                process.kill()


def listed(spec: WorkerSpec, settings: Settings) -> str:
    """What to write into a gateway's workers' file; JSON's texts, lists and numbers are TOML's, too."""
    fields: dict[str, object] = {"name": spec.name, "url": spec.address, "roles": spec.roles}
    if settings.vllm.data_parallel > 1:
        fields["data_parallel"] = settings.vllm.data_parallel
    if served_model(settings).takes_videos:
        fields["videos"] = True
    return "\n".join(
        ["[[workers]]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())]
    )


def _split_as(spec: WorkerSpec, settings: Settings) -> Settings:
    """Settings with the topology in which a server has these roles, where they leave no choice."""
    topology = settings.routing.topology
    if "prefill" in spec.roles and "decode" in spec.roles:
        topology = "e-pd" if "encode" not in spec.roles else topology
    elif spec.roles != ("encode",):
        topology = "e-p-d"
    elif topology not in ("e-pd", "e-p-d", "auto"):
        topology = "e-pd"
    return msgspec.structs.replace(settings, routing=msgspec.structs.replace(settings.routing, topology=topology))


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Set at the first signal inside the block."""
    end, numbers = threading.Event(), (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: end.set()) for number in numbers]
    try:
        yield end
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
