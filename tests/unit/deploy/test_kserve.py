"""The InferenceService of a pooling server against KServe's CRD, whose fields and types `kserve_fields.json` has."""

import copy
import json
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.settings import resolve

SCHEMA = json.loads((Path(__file__).parent / "kserve_fields.json").read_text())
PLAIN = {"str": str, "int": int, "bool": bool}
OF_KSERVE = {"minReplicas", "maxReplicas"}


def faults(value, type_name, where="service"):
    """What the CRD would not take; types of Kubernetes' own are looked at elsewhere."""
    if type_name in PLAIN:
        is_right = type(value) is PLAIN[type_name]
        return [] if is_right else [f"{where} is no {type_name}"]
    if (inner := re.fullmatch(r"list\[(.*)\]", type_name)) is not None:
        if not isinstance(value, list):
            return [f"{where} is no list"]
        return [fault for at, one in enumerate(value) for fault in faults(one, inner[1], f"{where}[{at}]")]
    fields = SCHEMA.get(type_name.removeprefix("V1beta1"))
    if fields is None:
        return [] if isinstance(value, dict) else [f"{where} is no object"]
    unknown = [f"{where}.{name} is not known" for name in value if name not in fields]
    known = [(name, one) for name, one in value.items() if name in fields]
    return unknown + [fault for name, one in known for fault in faults(one, fields[name], f"{where}.{name}")]


def written(*options):
    result = CliRunner().invoke(app, ["deploy", "kserve", *options])
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.stdout)


OPTIONS = {
    "packaged": (),
    "ranker": (
        "--name",
        "ranker",
        "--storage",
        "hf://me/cross-encoder",
        "--task",
        "classify",
        "--processor",
        "reranker",
    ),
    "two processors": ("--storage", "pvc://models/m", "--processor", "absa", "--processor", "mine", "--no-keys"),
    "gpu": ("--storage", "s3://models/m", "--gpus", "1", "--replicas", "2", "--max-replicas", "8"),
}


@pytest.fixture(params=OPTIONS.values(), ids=OPTIONS)
def service(request):
    return written(*request.param)


def test_the_crd_takes_it(service):
    assert faults(service, "V1beta1InferenceService") == []
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    pod = {name: one for name, one in service["spec"]["predictor"].items() if name not in OF_KSERVE}
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, "1.33", strict=True
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda spec: spec["predictor"].update(minReplicas="1"), "minReplicas is no int"),
        (lambda spec: spec["predictor"].update(replicas=1), "replicas is not known"),
        (lambda spec: spec["predictor"].update(containers={}), "containers is no list"),
        (lambda spec: spec.update(predictors={}), "predictors is not known"),
    ],
    ids=["type", "field of the predictor", "list", "field of the spec"],
)
def test_the_check_finds_what_the_crd_would_not_take(change, fault):
    service = copy.deepcopy(written())
    change(service["spec"])
    assert any(fault in one for one in faults(service, "V1beta1InferenceService"))


def test_the_server_in_the_pod_pools_as_was_asked():
    service = written(*OPTIONS["ranker"])
    (container,) = service["spec"]["predictor"]["containers"]
    command = container["command"]
    assert command[:3] == ["chiasm", "serve", "/mnt/models"]
    settings = resolve(
        environment={}, overrides=[command[at + 1] for at, word in enumerate(command) if word == "--set"]
    ).settings
    assert (settings.pooling.task, tuple(settings.pooling.io_processors)) == ("classify", ("reranker",))


def test_a_task_that_does_not_exist_is_refused_before_a_pod_fails():
    result = CliRunner().invoke(app, ["deploy", "kserve", "--task", "dance"])
    assert result.exit_code != 0
    assert "dance" in str(result.exception)
