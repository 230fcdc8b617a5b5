"""Two encoders, over shared memory and over TCP, and one consumer, all with Chiasm's connector."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.vllm.servers import VllmServer, start, wait_ready

CONNECTOR = {"ec_connector": "ChiasmECConnector", "ec_connector_module_path": "chiasm.engines.vllm.ec_connector"}
_SCHEDULER = "chiasm.engines.vllm.scheduler.CheckedScheduler"
MAX_BYTES = 4_000_000
HOLD_S = 1.0
"""What the encoder over shared memory offers and the consumer keeps: about 40 pictures of 224 x 224."""

_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_SERVER_DEV_MODE": "1"}  # so that tests can empty caches


class Fleet(NamedTuple):
    """Servers by what they do."""

    shm: VllmServer
    tcp: VllmServer
    consumer: VllmServer
    spool: Path
    """Folder of the only files that the encoder over shared memory opens."""

    def encoder(self, transport: str) -> VllmServer:
        """The encoder that offers over a transport."""
        return self.shm if transport == "shm" else self.tcp


def transfer_flags(role: str, **options: object) -> list[str]:
    """What makes a server offer embeddings, or take them."""
    config = CONNECTOR | {"ec_role": role, "ec_connector_extra_config": options}
    checked = ["--scheduler-cls", _SCHEDULER] if role == "ec_consumer" else []
    return ["--ec-transfer-config", json.dumps(config), *checked]


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Start the three at once; logs go to the folder.

    To work on tests without starting servers each time, start them by hand and name their ports:
    `CHIASM_VLLM_PORTS=8411,8413,8412`, and the first one's spool: `CHIASM_VLLM_SPOOL=FOLDER`.
    """
    ports = os.environ.get("CHIASM_VLLM_PORTS")
    if ports:
        numbers = [int(port) for port in ports.split(",")]
        spool = Path(os.environ["CHIASM_VLLM_SPOOL"])
        yield Fleet(*(VllmServer(None, number, Path(os.devnull)) for number in numbers), spool)
        return
    spool = folder / "spool"
    spool.mkdir(mode=0o700)
    configs = {
        "shm": transfer_flags("ec_producer", max_bytes=MAX_BYTES, hold_s=HOLD_S),
        "tcp": transfer_flags("ec_producer", transport="tcp"),
        "consumer": transfer_flags("ec_consumer", transport="tcp", max_bytes=MAX_BYTES),
    }
    with ExitStack() as stack:
        servers = []
        for name, config in configs.items():
            closed = ["--allowed-local-media-path", str(spool)] if name == "shm" else []
            server = start(
                *closed,
                "--limit-mm-per-prompt",
                '{"image": 4, "video": 0}',
                *config,
                log_path=folder / f"{name}.log",
                environment=_ENVIRONMENT | ({"VLLM_MEDIA_CONNECTOR": "chiasm"} if closed else {}),
            )
            stack.callback(server.stop)
            servers.append(server)
        for server in servers:
            wait_ready(server)
        yield Fleet(*servers, spool)
