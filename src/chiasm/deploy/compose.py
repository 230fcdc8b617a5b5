"""Docker Compose: one host, every worker a container, workers on a network that leads nowhere."""

from typing import Any

from chiasm.deploy.plan import DRAIN_S, GATEWAY_PORT, LEAVE_S, USER_ID, WORKER_PORT, Plan

Document = dict[str, Any]
_TOKEN = "CHIASM_ROUTING__WORKER_TOKEN"  # noqa: S105 - a variable's name
_ASKED = "${CHIASM_WORKER_TOKEN:?set it in .env: openssl rand -hex 32}"


def compose_file(plan: Plan) -> Document:
    """The Compose file. Workers are services of their own, since each has an address."""
    workers = {
        f"{group.name}-{number}": _worker(
            plan, plan.worker_command(group, f"{group.name}-{number}", f"{group.name}-{number}")
        )
        for group in plan.groups
        for number in range(group.count)
    }
    members = tuple(f"http://{name}:{WORKER_PORT}" for name in workers)
    gateway = _service(plan, plan.gateway_command(members), f"http://127.0.0.1:{GATEWAY_PORT}/ready") | {
        "ports": [f"127.0.0.1:{GATEWAY_PORT}:{GATEWAY_PORT}"],
        "networks": ["front", "inside"] if workers else ["front"],
    }
    if workers:
        gateway |= {
            "environment": {_TOKEN: _ASKED},
            "depends_on": {one: {"condition": "service_healthy"} for one in workers},
        }
    document: Document = {
        "name": plan.name,
        "services": {"gateway": gateway, **workers},
        "networks": {"front": {}} | ({"inside": {"internal": True}} if workers else {}),
    }
    if plan.keys:
        gateway["secrets"] = [{"source": "keys", "target": "/etc/chiasm/keys/keys.toml"}]
        document["secrets"] = {"keys": {"file": "./keys.toml"}}
    return document


def _worker(plan: Plan, command: list[str]) -> Document:
    address = command[command.index("--address") + 1]
    service = _service(plan, command, f"{address}/health")
    service |= {"environment": {_TOKEN: _ASKED}, "networks": ["inside"]}
    if plan.gpus:
        devices = [{"driver": "nvidia", "count": plan.gpus, "capabilities": ["gpu"]}]
        service["deploy"]["resources"]["reservations"] = {"devices": devices}
    return service


def _service(plan: Plan, command: list[str], health_url: str) -> Document:
    look = f"import urllib.request as u; u.urlopen('{health_url}', timeout=3)"
    service: Document = {
        "image": plan.image,
        "command": command,
        "user": f"{USER_ID}:{USER_ID}",
        "restart": "unless-stopped",
        "init": True,
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108 - inside the container
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "shm_size": "1gb",
        "stop_grace_period": f"{DRAIN_S + LEAVE_S + 10}s",
        "healthcheck": {
            "test": ["CMD", "python", "-c", look],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "300s",
        },
        "deploy": {"resources": {"limits": {"cpus": str(plan.cpus), "memory": f"{plan.memory_gib}g"}}},
    }
    if plan.model:
        service["volumes"] = [{"type": "bind", "source": "./model", "target": plan.model, "read_only": True}]
    return service
