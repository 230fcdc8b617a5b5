"""Network policies: callers reach gateways, gateways reach workers, workers reach each other and nothing outside."""

from typing import Any

from chiasm.deploy.plan import GATEWAY_PORT, WORKER_PORT, Plan
from chiasm.deploy.pods import Document, labels

_PRIVATE = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "127.0.0.0/8"]
_NAMES = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ],
    "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
}


def network_policies(plan: Plan) -> list[Document]:
    """One policy for gateways and one for each stage; what they do not allow, nobody of theirs may."""
    workers = [{"podSelector": {"matchLabels": labels(plan, group.name)}} for group in plan.groups]
    gateway = [{"podSelector": {"matchLabels": labels(plan, "gateway")}}]
    leaving: list[Document] = [_NAMES]
    if workers:
        leaving.append({"to": workers, "ports": [_port(WORKER_PORT)]})
    if plan.downloads:
        public = {"ipBlock": {"cidr": "0.0.0.0/0", "except": _PRIVATE}}
        leaving.append({"to": [public], "ports": [_port(443)]})
    policies = [_policy(plan, "gateway", [{"ports": [_port(GATEWAY_PORT)]}], leaving)]
    for group in plan.groups:
        # tensors go from worker to worker over ports that the system chooses
        coming = [{"from": gateway, "ports": [_port(WORKER_PORT)]}, {"from": workers}]
        policies.append(_policy(plan, group.name, coming, [{"to": workers}]))
    return policies


def _port(number: int) -> Document:
    return {"protocol": "TCP", "port": number}


def _policy(plan: Plan, component: str, coming: list[Document], leaving: list[Document]) -> Document:
    spec: dict[str, Any] = {
        "podSelector": {"matchLabels": labels(plan, component)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": coming,
        "egress": leaving,
    }
    metadata = {"name": f"{plan.name}-{component}", "labels": {"app.kubernetes.io/name": plan.name}}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
