"""KServe: one InferenceService whose pod is a whole server; its stages are processes inside the pod."""

import json
import re
from collections.abc import Sequence

from chiasm.deploy.plan import GATEWAY_PORT, Plan
from chiasm.deploy.pods import Document, gateway_container, pod
from chiasm.errors import InvalidSettingError

_MODEL_MOUNT = "/mnt/models"  # where KServe's storage initializer puts the model


def pooling_settings(task: str, processors: Sequence[str]) -> list[str]:
    """Settings of a server that pools: what the model is served for, and the IO processors that `/pooling` offers."""
    settings = [f"pooling.task={task}"] if task else []
    if processors:
        settings.append(f"pooling.io_processors={json.dumps(list(processors))}")
    return settings


def inference_service(plan: Plan, storage: str = "", settings: Sequence[str] = ()) -> Document:
    """The InferenceService. `storage` is KServe's address of the model (pvc://, s3://, hf://), or empty.

    Every one of `settings` is a section.field=value of the server.

    Raises:
        InvalidSettingError: KServe would refuse it: fewer servers at most than to begin with, or no address.
    """
    if plan.max_encoders < plan.gateways:
        raise InvalidSettingError(
            f"At most {plan.max_encoders} servers, {plan.gateways} to begin with", hint="Raise --max-replicas"
        )
    if storage and not re.fullmatch(r"[a-z][a-z0-9+.-]*://\S+", storage):
        raise InvalidSettingError(
            f"'{storage}' is no address for KServe's storage",
            hint="It begins with a scheme: pvc://CLAIM/PATH, s3://, gs://, hf://ORGANISATION/MODEL",
        )
    alone = Plan(
        name=plan.name,
        image=plan.image,
        model=_MODEL_MOUNT if storage else "",
        topology="local",
        gpus=plan.gpus,
        cpus=plan.cpus,
        memory_gib=plan.memory_gib,
        keys=plan.keys,
    )
    command = [*alone.gateway_command(()), *(part for setting in settings for part in ("--set", setting))]
    container = gateway_container(alone, command, "kserve-container")
    container["ports"] = [{"name": "http", "containerPort": GATEWAY_PORT, "protocol": "TCP"}]
    if plan.gpus:
        container["resources"]["limits"]["nvidia.com/gpu"] = plan.gpus
    spec = pod(alone, [container], has_keys=plan.keys)
    if storage:  # mounted by KServe, not by us
        container["env"].append({"name": "STORAGE_URI", "value": storage})
        container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != "model"]
        spec["volumes"] = [one for one in spec["volumes"] if one["name"] != "model"]
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": plan.name,
            "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"},
            "labels": {"app.kubernetes.io/name": plan.name},
        },
        "spec": {"predictor": {"minReplicas": plan.gateways, "maxReplicas": plan.max_encoders, **spec}},
    }
