"""Autoscaling of encoders by `chiasm_encoder_queue_seconds`, which gateways export."""

from typing import Any

from chiasm.deploy.plan import Plan
from chiasm.deploy.pods import Document
from chiasm.errors import InvalidSettingError

METRIC = "chiasm_encoder_queue_seconds"
_CALM_S = 300
"""How long it must be quiet before an encoder goes: its cache goes with it."""


def hpa(plan: Plan, queue_s: float) -> Document:
    """A HorizontalPodAutoscaler over an external metric; an adapter brings it from Prometheus to the cluster's API.

    The metric is a mean over encoders already, hence compared as a value.
    """
    metric = {"name": METRIC, "selector": {"matchLabels": {"app": plan.name}}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(plan),
        "spec": {
            "scaleTargetRef": _target(plan),
            "minReplicas": plan.encoders,
            "maxReplicas": plan.max_encoders,
            "metrics": [
                {
                    "type": "External",
                    "external": {"metric": metric, "target": {"type": "Value", "value": f"{round(queue_s * 1000)}m"}},
                }
            ],
            "behavior": _behavior(),
        },
    }


def scaled_object(plan: Plan, queue_s: float, prometheus: str) -> Document:
    """KEDA's ScaledObject, which asks Prometheus itself. Raises `InvalidSettingError` without its address."""
    if not prometheus:
        raise InvalidSettingError(
            "KEDA needs Prometheus' address", hint="--prometheus http://prometheus.monitoring:9090"
        )
    trigger = {
        "type": "prometheus",
        "metricType": "Value",
        "metadata": {"serverAddress": prometheus, "query": f"max({METRIC})", "threshold": f"{queue_s:g}"},
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(plan),
        "spec": {
            "scaleTargetRef": _target(plan),
            "minReplicaCount": plan.encoders,
            "maxReplicaCount": plan.max_encoders,
            "cooldownPeriod": _CALM_S,
            "triggers": [trigger],
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior()}},
        },
    }


def _behavior() -> dict[str, Any]:
    return {
        "scaleDown": {
            "stabilizationWindowSeconds": _CALM_S,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        }
    }


def _target(plan: Plan) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{plan.name}-encode"}


def _metadata(plan: Plan) -> Document:
    return {"name": f"{plan.name}-encode", "labels": {"app.kubernetes.io/name": plan.name}}
