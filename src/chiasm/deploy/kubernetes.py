"""Kubernetes: gateways as a Deployment, workers as StatefulSets with addresses of their own."""

from typing import Any, Literal

from chiasm.deploy.network import network_policies
from chiasm.deploy.plan import GATEWAY_PORT, WORKER_PORT, Plan, WorkerGroup
from chiasm.deploy.pods import Document, gateway_container, labels, pod, token_variable, worker_container
from chiasm.deploy.scaling import hpa, scaled_object

Autoscaler = Literal["hpa", "keda", "none"]
_POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
_POD_NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def kubernetes_manifests(
    plan: Plan, autoscaler: Autoscaler = "hpa", queue_s: float = 0.5, prometheus: str = ""
) -> list[Document]:
    """All objects, in the order in which they are to be made.

    The secrets `NAME-keys` (keys.toml) and `NAME-workers` (token), and with a model the claim `NAME-model`, are the
    operator's to make.
    """
    groups = plan.groups
    documents = [_service(plan), _gateway(plan)]
    for group in groups:
        documents += [_headless(plan, group), _workers(plan, group)]
    components = ["gateway", *(group.name for group in groups)]
    documents += [_disruption_budget(plan, component) for component in components]
    documents += network_policies(plan)
    if groups and autoscaler != "none" and plan.max_encoders > plan.encoders:
        documents.append(hpa(plan, queue_s) if autoscaler == "hpa" else scaled_object(plan, queue_s, prometheus))
    return documents


def _members(plan: Plan) -> tuple[str, ...]:
    """Addresses of all workers that there may become; those that are not there yet join when they answer."""
    return tuple(
        f"http://{_of(plan, group)}-{number}.{_of(plan, group)}:{WORKER_PORT}"
        for group in plan.groups
        for number in range(group.most)
    )


def _gateway(plan: Plan) -> Document:
    container = gateway_container(plan, plan.gateway_command(_members(plan)))
    if plan.groups:
        container["env"].append(token_variable(plan))
    spec = pod(plan, [container], has_keys=plan.keys)
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels(plan, "gateway")},
        }
    ]
    return _object(
        plan,
        "apps/v1",
        "Deployment",
        f"{plan.name}-gateway",
        {
            "replicas": plan.gateways,
            "selector": {"matchLabels": labels(plan, "gateway")},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": labels(plan, "gateway")}, "spec": spec},
        },
    )


def _workers(plan: Plan, group: WorkerGroup) -> Document:
    container = worker_container(plan, plan.worker_command(group, "$(POD_NAME)", "$(POD_IP)"))
    container["env"] += [_POD_IP, _POD_NAME, token_variable(plan)]
    return _object(
        plan,
        "apps/v1",
        "StatefulSet",
        _of(plan, group),
        {
            "replicas": group.count,
            "serviceName": _of(plan, group),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels(plan, group.name)},
            "template": {
                "metadata": {"labels": labels(plan, group.name)},
                "spec": pod(plan, [container], has_keys=False),
            },
        },
    )


def _service(plan: Plan) -> Document:
    ports = [{"name": "http", "port": 80, "targetPort": GATEWAY_PORT}]
    return _object(plan, "v1", "Service", plan.name, {"selector": labels(plan, "gateway"), "ports": ports})


def _headless(plan: Plan, group: WorkerGroup) -> Document:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels(plan, group.name),
        "ports": [{"name": "http", "port": WORKER_PORT}],
    }
    return _object(plan, "v1", "Service", _of(plan, group), spec)


def _disruption_budget(plan: Plan, component: str) -> Document:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(plan, component)}}
    return _object(plan, "policy/v1", "PodDisruptionBudget", f"{plan.name}-{component}", spec)


def _object(plan: Plan, version: str, kind: str, name: str, spec: dict[str, Any]) -> Document:
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": plan.name}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _of(plan: Plan, group: WorkerGroup) -> str:
    return f"{plan.name}-{group.name}"
