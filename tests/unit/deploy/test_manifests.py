"""Manifests against the schemas of those who read them, and what each must say whatever was asked for."""

import itertools
import json
from pathlib import Path

import compose_spec
import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.deploy.compose import compose_file
from chiasm.deploy.kserve import inference_service
from chiasm.deploy.kubernetes import kubernetes_manifests
from chiasm.deploy.plan import Plan
from chiasm.errors import InvalidSettingError
from chiasm.observability.metrics import GatewayMetrics
from chiasm.settings import resolve

PLANS = {
    "local": Plan(topology="local", keys=False),
    "e-pd": Plan(topology="e-pd", encoders=2, max_encoders=5, model="/model", downloads=True),
    "e-p-d": Plan(topology="e-p-d", decodes=3, gpus=1, name="other"),
}
VERSION = "1.33"
KEDA = Draft202012Validator(json.loads((Path(__file__).parent / "keda_schema.json").read_text())["ScaledObjectSpec"])


@pytest.fixture(params=PLANS, ids=str)
def plan(request):
    return PLANS[request.param]


def documents(plan, kind, **options):
    return [one for one in kubernetes_manifests(plan, **options) if one["kind"] == kind]


def pods(plan):
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in kubernetes_manifests(plan)
        if one["kind"] in {"Deployment", "StatefulSet"}
    }


def commands(plan):
    yield from (container["command"] for pod in pods(plan).values() for container in pod["containers"])
    yield from (service["command"] for service in compose_file(plan)["services"].values())


def test_kubernetes_takes_every_object(plan):
    for one in kubernetes_manifests(plan):
        kubernetes_validate.validate(one, VERSION, strict=True)


@pytest.mark.parametrize("queue_s", [0.5, 2.0])
def test_keda_takes_its_object(queue_s):
    more = {"autoscaler": "keda", "prometheus": "http://prometheus:9090", "queue_s": queue_s}
    (made,) = documents(PLANS["e-pd"], "ScaledObject", **more)
    assert (made["apiVersion"], made.keys()) == ("keda.sh/v1alpha1", {"apiVersion", "kind", "metadata", "spec"})
    KEDA.validate(made["spec"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spec: spec["triggers"][0].pop("type"),
        lambda spec: spec["triggers"][0]["metadata"].update(threshold=2),
        lambda spec: spec.update(minReplicas=1),
        lambda spec: spec["scaleTargetRef"].pop("name"),
        lambda spec: spec.update(cooldownPeriod="300s"),
        lambda spec: spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"].update(policy=1),
    ],
)
def test_what_keda_would_refuse_is_refused(spoil):
    (made,) = documents(PLANS["e-pd"], "ScaledObject", autoscaler="keda", prometheus="http://p:9090")
    spoil(made["spec"])
    assert not KEDA.is_valid(made["spec"])


def test_compose_takes_the_file(plan):
    compose = compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose_file(plan)))
    compose.validate()
    assert "gateway" in compose.service_names()


@pytest.mark.parametrize("storage", ["", "pvc://models/qwen"])
def test_the_pod_of_an_inference_service_is_one(plan, storage):
    service = inference_service(plan, storage)
    predictor = dict(service["spec"]["predictor"])
    assert predictor.pop("minReplicas") <= predictor.pop("maxReplicas")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": predictor}
    kubernetes_validate.validate(pod, VERSION, strict=True)
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"
    assert ("/mnt/models" in container["command"]) == bool(storage)
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in predictor["volumes"]}


def test_every_setting_in_a_command_exists(plan):
    for command in commands(plan):
        overrides = [after for before, after in itertools.pairwise(command) if before == "--set"]
        assert resolve(overrides=overrides)


def test_the_gateway_knows_every_worker_that_there_may_be():
    (gateway,) = documents(PLANS["e-pd"], "Deployment")
    command = gateway["spec"]["template"]["spec"]["containers"][0]["command"]
    (setting,) = [one for one in command if one.startswith("routing.members=")]
    members = resolve(overrides=[setting]).settings.routing.members
    assert members == (
        *(f"http://chiasm-encode-{number}.chiasm-encode:9001" for number in range(5)),
        "http://chiasm-prefill-0.chiasm-prefill:9001",
    )
    names = {one["metadata"]["name"] for one in documents(PLANS["e-pd"], "Service")}
    assert {member.split(".")[1].split(":")[0] for member in members} <= names


def test_every_pod_is_probed_drained_and_has_no_rights(plan):
    for name, pod in pods(plan).items():
        (container,) = pod["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe", "lifecycle"} <= container.keys(), name
        ready = container["readinessProbe"]["httpGet"]["path"]
        assert ready == ("/ready" if name.endswith("gateway") else "/health")
        leave_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] > leave_s + 30
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        rights = container["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})
        assert rights["readOnlyRootFilesystem"]


def test_engines_reach_each_other_and_nothing_outside(plan):
    policies = {one["metadata"]["name"]: one["spec"] for one in documents(plan, "NetworkPolicy")}
    selected = [one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in policies.values()]
    assert sorted(selected) == sorted(["gateway", *(group.name for group in plan.groups)])
    workers = [{"podSelector": {"matchLabels": _labels(plan, group.name)}} for group in plan.groups]
    for group in plan.groups:
        policy = policies[f"{plan.name}-{group.name}"]
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
        assert policy["egress"] == [{"to": workers}]
        sources = [source for rule in policy["ingress"] for source in rule["from"]]
        assert sources == [{"podSelector": {"matchLabels": _labels(plan, "gateway")}}, *workers]
    leaving = policies[f"{plan.name}-gateway"]["egress"]
    outside = [target for rule in leaving for target in rule["to"] if "ipBlock" in target]
    assert bool(outside) == plan.downloads
    for target in outside:
        assert "169.254.0.0/16" in target["ipBlock"]["except"], "no metadata service"


def _labels(plan, component):
    return {"app.kubernetes.io/name": plan.name, "app.kubernetes.io/component": component}


def test_workers_of_compose_are_on_a_network_that_leads_nowhere():
    file = compose_file(PLANS["e-pd"])
    assert file["networks"]["inside"] == {"internal": True}
    for name, service in file["services"].items():
        if name != "gateway":
            assert service["networks"] == ["inside"]
            assert "ports" not in service
    assert file["services"]["gateway"]["ports"] == ["127.0.0.1:8000:8000"]


def test_every_part_may_lose_one_pod_at_a_time(plan):
    budgets = documents(plan, "PodDisruptionBudget")
    assert len(budgets) == 1 + len(plan.groups)
    assert all(one["spec"]["maxUnavailable"] == 1 for one in budgets)


def test_encoders_are_scaled_by_a_metric_that_gateways_export():
    plan = PLANS["e-pd"]
    (scaler,) = documents(plan, "HorizontalPodAutoscaler")
    spec = scaler["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    (metric,) = spec["metrics"]
    assert metric["external"]["target"] == {"type": "Value", "value": "500m"}
    from chiasm.asgi.admission import Admission
    from chiasm.gateway.autoscaling import autoscaling_levels
    from tests.fakes import FakeWorker

    levels = GatewayMetrics(lambda: autoscaling_levels(Admission(1, 1), FakeWorker(), 1.0), dict, dict)
    exported = {family.name for family in levels.registry.collect()}
    assert metric["external"]["metric"]["name"] in exported
    (keda,) = documents(plan, "ScaledObject", autoscaler="keda", prometheus="http://prometheus:9090", queue_s=2.0)
    (trigger,) = keda["spec"]["triggers"]
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus:9090", "query": "max(chiasm_encoder_queue_seconds)", "threshold": "2"
    }  # fmt: skip
    (workers,) = [one for one in documents(plan, "StatefulSet") if one["metadata"]["name"].endswith("encode")]
    assert keda["spec"]["scaleTargetRef"]["name"] == spec["scaleTargetRef"]["name"] == workers["metadata"]["name"]
    assert not documents(plan, "HorizontalPodAutoscaler", autoscaler="none")
    with pytest.raises(InvalidSettingError, match="Prometheus"):
        kubernetes_manifests(plan, "keda")


def test_secrets_are_named_and_never_written(plan):
    text = yaml.safe_dump_all(kubernetes_manifests(plan))
    assert "kind: Secret" not in text
    assert ("chiasm-keys" in text or "other-keys" in text) == plan.keys


def test_the_commands_write_what_can_be_read_back(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["deploy", *arguments])

    made = run("kubernetes", "--topology", "e-p-d", "--max-encoders", "8", "-o", str(tmp_path / "k.yaml"))
    assert made.exit_code == 0, made.output
    kinds = [one["kind"] for one in yaml.safe_load_all((tmp_path / "k.yaml").read_text())]
    assert kinds.count("StatefulSet") == 3
    assert yaml.safe_load(run("compose").stdout)["services"].keys() == {"gateway", "encode-0", "prefill-0"}
    assert yaml.safe_load(run("kserve", "--storage", "hf://x/y").stdout)["kind"] == "InferenceService"
    for wrong in (("kubernetes", "--topology", "star"), ("kubernetes", "--name", "A b"), ("compose", "--encoders", "0"),
                  ("kubernetes", "--autoscaler", "x"), ("kubernetes", "--encoders", "9"),
                  ("kserve", "--replicas", "5", "--max-replicas", "2"),
                  ("kserve", "--storage", "me/model")):  # fmt: skip
        assert isinstance(run(*wrong).exception, InvalidSettingError), wrong
    for option in ("--memory-gib", "--replicas", "--max-replicas"):
        assert run("kserve", option, "0").exception.message.startswith(f"{option}: ")
