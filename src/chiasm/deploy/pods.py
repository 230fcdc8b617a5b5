"""Pods as Kubernetes and KServe have them: commands, probes, drain, and as few rights as possible."""

from typing import Any

from chiasm.deploy.plan import DRAIN_S, GATEWAY_PORT, LEAVE_S, USER_ID, WORKER_PORT, Plan

Document = dict[str, Any]
CLAIM = "model"


def labels(plan: Plan, component: str) -> dict[str, str]:
    """What selects one kind of pod."""
    return {"app.kubernetes.io/name": plan.name, "app.kubernetes.io/component": component}


def gateway_container(plan: Plan, command: list[str], name: str = "gateway") -> Document:
    """The server."""
    container = _container(plan, name, command, GATEWAY_PORT, "/ready")
    if plan.keys:
        container["volumeMounts"].append({"name": "keys", "mountPath": "/etc/chiasm/keys", "readOnly": True})
    return container


def worker_container(plan: Plan, command: list[str]) -> Document:
    """A worker."""
    container = _container(plan, "worker", command, WORKER_PORT, "/health")
    if plan.gpus:
        container["resources"]["limits"]["nvidia.com/gpu"] = plan.gpus
    return container


def token_variable(plan: Plan) -> Document:
    """The secret that gateway and workers share."""
    reference = {"name": f"{plan.name}-workers", "key": "token"}
    return {"name": "CHIASM_ROUTING__WORKER_TOKEN", "valueFrom": {"secretKeyRef": reference}}


def pod(plan: Plan, containers: list[Document], *, has_keys: bool) -> Document:
    """A pod's specification."""
    volumes: list[Document] = [
        {"name": "scratch", "emptyDir": {"sizeLimit": "2Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    if has_keys:
        volumes.append({"name": "keys", "secret": {"secretName": f"{plan.name}-keys"}})
    if plan.model:
        volumes.append(
            {"name": "model", "persistentVolumeClaim": {"claimName": f"{plan.name}-{CLAIM}", "readOnly": True}}
        )
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": DRAIN_S + LEAVE_S + 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
        "volumes": volumes,
    }


def _container(plan: Plan, name: str, command: list[str], port: int, ready_path: str) -> Document:
    amount = {"cpu": str(plan.cpus), "memory": f"{plan.memory_gib}Gi"}
    mounts: list[Document] = [
        {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - inside the container
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - inside the container
    ]
    if plan.model:
        mounts.append({"name": "model", "mountPath": plan.model, "readOnly": True})
    return {
        "name": name,
        "image": plan.image,
        "command": command,
        "ports": [{"name": "http", "containerPort": port}],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - inside the container
        "resources": {"requests": dict(amount), "limits": {"memory": amount["memory"]}},
        "startupProbe": _probe("/health", 5, 120),
        "livenessProbe": _probe("/health", 10, 3),
        "readinessProbe": _probe(ready_path, 3, 2),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVE_S)]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _probe(path: str, period_s: int, failures: int) -> Document:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
