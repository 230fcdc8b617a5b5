"""What is placed, and what travels to a node: everything but secrets."""

import json
import re

import msgspec
import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.cluster.placement import (
    Assignment,
    as_gateway,
    assignment_of,
    cluster_specs,
    gateway_specs,
    on_node,
    ray_address,
    room_of,
)
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.settings import ClusterSettings, resolve
from chiasm.settings.secret import hand_down_secrets

SECRETS = {"gateway.api_keys": ["k\u00e9y"], "gateway.admin_keys": ["operator-key"], "routing.worker_token": "shared"}
ENCODER = WorkerSpec(name="encode-0", roles=("encode",))
GATEWAY = WorkerSpec(name="gateway-0", roles=())


def settings(**values):
    return resolve(values={"routing.topology": "e-p-d"} | values, environment={}).settings


@pytest.fixture
def node(monkeypatch):
    """The environment of a node, emptied of what the machine has."""
    for name in ("GATEWAY__API_KEYS", "GATEWAY__ADMIN_KEYS", "ROUTING__WORKER_TOKEN"):
        monkeypatch.setenv(f"CHIASM_{name}", "x")  # so that it is put back, however the test sets it
        monkeypatch.delenv(f"CHIASM_{name}")
    return monkeypatch


@pytest.mark.parametrize(("text", "expected"), [("ray", None), ("ray://10.0.0.5:6379", "10.0.0.5:6379")])
def test_an_address_names_a_cluster(text, expected):
    assert ray_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "rays",
        "10.0.0.5:6379",
        "ray://10.0.0.5",
        "ray://:6379",
        "ray://a:b",
        "http://a:1",
        "ray://a:0",
        "ray://a:65536",
        "ray://a:\u00b2",
    ],
)
def test_other_addresses_are_refused(text):
    with pytest.raises(InvalidSettingError, match="is no cluster"):
        ray_address(text)


def test_a_cluster_needs_workers_of_the_embedded_engine():
    assert [one.name for one in cluster_specs(settings())] == ["encode-0", "prefill-0", "decode-0"]
    with pytest.raises(InvalidSettingError, match="needs workers"):
        cluster_specs(settings(**{"routing.topology": "local"}))


@pytest.mark.parametrize(
    "values",
    [
        {"routing.topology": "e-pd"},
        {"vllm.workers_file": "workers.toml"},
        {"vllm.devices": ["0", "0"]},
        {"adapters.roots": ["/adapters"]},
    ],
)
def test_of_vllm_only_whole_servers_are_placed(values):
    whole = {"engine.kind": "vllm", "routing.topology": "agg"}
    assert [one.name for one in cluster_specs(settings(**whole))] == ["worker-0", "worker-1"]
    with pytest.raises(InvalidSettingError, match=r"vLLM|whole servers"):
        cluster_specs(settings(**(whole | values)))


def test_a_server_of_vllm_gets_a_port_and_the_time_that_it_needs(node):
    node.setenv("CHIASM_ROUTING__WORKER_TOKEN", "shared")
    whole = settings(**{"engine.kind": "vllm", "routing.topology": "agg", "vllm.start_timeout_s": 700.0} | SECRETS)
    spec = cluster_specs(whole)[0]
    assignment = assignment_of(spec, whole)
    assert assignment.start_timeout_s == 700.0
    assert assignment_of(GATEWAY, whole).start_timeout_s < 700.0
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]+", on_node(assignment, "127.0.0.1").spec.address)


def test_several_gateways_need_a_store_and_have_ports_of_their_own():
    assert [one.name for one in gateway_specs(settings())] == ["gateway-0"]
    three = {"cluster.gateways": 3}
    with pytest.raises(InvalidSettingError, match="3 gateways need a store"):
        gateway_specs(settings(**three))
    shared = settings(**three, **{"gateway.store": "redis://h:6379/0", "gateway.port": 9000})
    assert [one.name for one in gateway_specs(shared)] == ["gateway-0", "gateway-1", "gateway-2"]
    assert [as_gateway(shared, place).gateway.port for place in range(3)] == [9000, 9001, 9002]
    anywhere = settings(**{"gateway.port": 0})
    assert as_gateway(anywhere, 2).gateway.port == 0
    with pytest.raises(InvalidSettingError, match="no 3 ports"):
        gateway_specs(settings(**three, **{"gateway.store": "redis://h", "gateway.port": 65534}))


def test_each_role_has_its_room_and_the_heaviest_counts():
    cluster = ClusterSettings(gateway_cpus=0.5, encode_cpus=2, prefill_cpus=4, prefill_gpus=1, decode_cpus=3)
    found = [room_of(spec, cluster) for spec in (*cluster_specs(settings()), GATEWAY)]
    assert [(room.cpus, room.gpus) for room in found] == [(2, 0), (4, 1), (3, 0), (0.5, 0)]
    assert str(found[1]) == "4 CPU and 1 GPU"


@pytest.mark.parametrize("spec", [ENCODER, GATEWAY])
def test_no_secret_travels(spec):
    sent = msgspec.json.encode(assignment_of(spec, settings(**SECRETS))).decode()
    assert json.loads(sent)["order"]["settings"]["routing"]["topology"] == "e-p-d"
    for secret in ("k\u00e9y", "operator-key", "shared"):
        assert secret not in sent


def test_a_node_adds_its_secrets_its_address_and_its_cores(node):
    hand_down_secrets(settings(**SECRETS))
    assignment = assignment_of(GATEWAY, settings(**SECRETS))
    order = on_node(msgspec.json.decode(msgspec.json.encode(assignment), type=Assignment), "10.0.0.7")
    assert order.settings.gateway.api_keys == ("k\u00e9y",)
    assert order.settings.gateway.admin_keys == ("operator-key",)
    assert order.settings.routing.worker_token == "shared"
    assert (order.settings.transfer.connector, order.settings.transfer.host) == ("tcp", "10.0.0.7")
    assert order.spec.address == "http://10.0.0.7:0"
    assert on_node(assignment, "fd00::7").spec.address == "http://[fd00::7]:0"


def test_threads_are_the_cores_that_were_set_aside_unless_they_are_set(node):
    sized = assignment_of(ENCODER, settings(**{"cluster.encode_cpus": 3.5}))
    assert on_node(sized, "10.0.0.7").settings.engine.threads == 3
    chosen = assignment_of(ENCODER, settings(**{"engine.threads": 2}))
    assert on_node(chosen, "10.0.0.7").settings.engine.threads == 2


def test_a_node_without_a_secret_that_the_server_has_starts_nothing(node):
    with pytest.raises(InvalidSettingError, match=r"gateway\.admin_keys is set for the server and not on this node"):
        on_node(assignment_of(GATEWAY, settings(**SECRETS)), "10.0.0.7")


def test_workers_need_no_key_of_callers(node):
    node.setenv("CHIASM_ROUTING__WORKER_TOKEN", "shared")
    assert on_node(assignment_of(ENCODER, settings(**SECRETS)), "10.0.0.7").settings.gateway.api_keys == ()
