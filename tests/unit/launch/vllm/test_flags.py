"""Which command line each role gets."""

import json
from pathlib import Path

import pytest

from chiasm.launch.vllm.crew import vllm_specs
from chiasm.launch.vllm.flags import Place, arguments_of, environment_of
from chiasm.settings import AdapterSettings, MediaSettings, RoutingSettings, Settings, TransferSettings, VllmSettings

SPEC = vllm_specs(RoutingSettings())[0]


def place(**fields):
    known = {
        "python": "python", "directory": Path("/m"), "served_name": "m", "address": "unix:/s", "spool": Path("/spool"),
        "embeddings": Path("/ec"), "device": "cpu", "takes_images": True,
        "needs_tower": False,
        "kv_port": 5000,
    }  # fmt: skip
    return Place(**(known | fields))


def lines(topology="e-pd", vllm=None, transfer=None, device="cpu", takes_images=True, **routing):
    """Flags by worker, each with its value or None."""
    settings = Settings(
        routing=RoutingSettings(topology=topology, **routing),
        vllm=VllmSettings(**(vllm or {})),
        transfer=TransferSettings(**(transfer or {})),
        media=MediaSettings(max_items=5),
    )
    found = {}
    for spec in vllm_specs(settings.routing):
        arguments = arguments_of(spec, settings, place(device=device, takes_images=takes_images))[3:]
        flags = {}
        for at, argument in enumerate(arguments):
            if argument.startswith("--"):
                value = arguments[at + 1] if at + 1 < len(arguments) else "--"
                flags[argument] = None if value.startswith("--") else value
        found[spec.name] = flags
    return found


def loaded(flags, name):
    return json.loads(flags[name])


def test_every_server_is_told_what_it_serves_and_fetches_nothing():
    for flags in lines("auto").values():
        assert flags["--model"] == "/m"
        assert flags["--uds"] == "/s"
        assert flags["--allowed-media-domains"] == "none.invalid"
        assert flags["--allowed-local-media-path"] == "/spool"
        assert flags["--generation-config"] == "vllm"


def test_split_servers_are_encoders_and_consumers():
    found = lines("e-pd", encoders=2, local_encode="never")
    assert list(found) == ["encode-0", "encode-1", "prefill-0"]
    encoder, prefill = found["encode-0"], found["prefill-0"]
    assert "--mm-encoder-only" in encoder
    assert loaded(encoder, "--limit-mm-per-prompt") == {"image": 5, "video": 0}
    assert loaded(encoder, "--ec-transfer-config")["ec_role"] == "ec_producer"
    assert "--mm-encoder-only" not in prefill
    assert loaded(prefill, "--ec-transfer-config")["ec_role"] == "ec_consumer"
    assert loaded(prefill, "--limit-mm-per-prompt") == {"image": 0, "video": 0}


def test_a_model_with_deepstack_keeps_a_tower_that_it_never_runs():
    settings = Settings(
        routing=RoutingSettings(topology="e-pd", local_encode="never"), media=MediaSettings(max_items=5)
    )
    _, prefill = vllm_specs(settings.routing)
    arguments = arguments_of(prefill, settings, place(needs_tower=True))
    assert arguments[arguments.index("--limit-mm-per-prompt") + 1] == '{"image": 5, "video": 0}'


def test_a_prefill_server_keeps_its_eyes_where_it_is_the_last_resort():
    found = lines("e-pd", local_encode="fallback")
    assert loaded(found["prefill-0"], "--limit-mm-per-prompt") == {"image": 5, "video": 0}


@pytest.mark.parametrize(
    ("hint", "reserved"),
    [((), {"num_frames": 2}), ((640, 480), {"num_frames": 2, "width": 640, "height": 480})],
)
def test_videos_are_let_in_with_no_more_room_than_a_picture_has(hint, reserved):
    settings = Settings(media=MediaSettings(max_items=5), vllm=VllmSettings(picture_hint=hint))
    arguments = arguments_of(SPEC, settings, place(takes_videos=True))
    limits = json.loads(arguments[arguments.index("--limit-mm-per-prompt") + 1])
    assert limits["video"] == {"count": 5} | reserved
    never = Settings(routing=RoutingSettings(topology="e-pd", local_encode="never"))
    _, prefill = vllm_specs(never.routing)
    arguments = arguments_of(prefill, never, place(takes_videos=True))
    assert json.loads(arguments[arguments.index("--limit-mm-per-prompt") + 1])["video"] == 0, "it has no eyes"


def test_servers_read_media_by_chiasms_own_connector():
    assert environment_of(SPEC, Settings(), place())["VLLM_MEDIA_CONNECTOR"] == "chiasm"
    assert "VLLM_MEDIA_CONNECTOR" not in environment_of(SPEC, Settings(), place(takes_images=False))


def test_whole_servers_neither_take_nor_give_embeddings():
    assert list(lines("local")) == ["worker-0"]
    for flags in lines("agg", workers=2).values():
        assert not {"--ec-transfer-config", "--kv-transfer-config", "--mm-encoder-only"} & set(flags)


def test_keys_and_values_go_from_prefill_to_decode():
    found = lines("e-p-d")
    assert loaded(found["prefill-0"], "--kv-transfer-config") == {
        "kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_buffer_device": "cpu",
    }  # fmt: skip
    assert loaded(found["decode-0"], "--kv-transfer-config")["kv_role"] == "kv_consumer"
    assert "--ec-transfer-config" not in found["decode-0"]
    assert loaded(found["decode-0"], "--limit-mm-per-prompt")["image"] == 5, "raw pictures may come on the last resort"
    bare = lines("e-p-d", local_encode="never")
    assert loaded(bare["decode-0"], "--limit-mm-per-prompt")["image"] == 0


def test_mooncake_takes_keys_and_values_over_where_it_is_asked_for():
    mooncake = {"kv_connector": "mooncake", "mooncake_protocol": "tcp"}
    found = lines("e-p-d", vllm=mooncake, device="cuda")
    assert loaded(found["prefill-0"], "--kv-transfer-config") == {
        "kv_connector": "MooncakeConnector", "kv_role": "kv_producer",
        "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
    }  # fmt: skip
    routing = RoutingSettings(topology="e-p-d")
    _, prefill, _ = vllm_specs(routing)
    settings = Settings(routing=routing, vllm=VllmSettings(**mooncake), transfer=TransferSettings(host="10.0.0.5"))
    variables = environment_of(prefill, settings, place(device="cuda"))
    assert (variables["VLLM_MOONCAKE_BOOTSTRAP_PORT"], variables["VLLM_HOST_IP"]) == ("5000", "10.0.0.5")
    assert not {name for name in variables if "NIXL" in name}


@pytest.mark.parametrize(("connector", "transport"), [("shm", "shm"), ("tcp", "tcp"), ("file", "shm")])
def test_chiasms_connector_gets_its_transport_and_bounds(connector, transport):
    found = lines(
        "e-pd", transfer={"connector": connector, "max_bytes": 2**21, "host": "10.0.0.7"}, vllm={"ec_wait_s": 3}
    )
    config = loaded(found["prefill-0"], "--ec-transfer-config")
    assert config["ec_connector_module_path"] == "chiasm.engines.vllm.ec_connector"
    assert config["ec_connector_extra_config"] == {
        "transport": transport, "directory": "/ec", "max_bytes": 2**21, "wait_s": 3, "ttl_s": 60.0,
        "host": "10.0.0.7",
    }  # fmt: skip


def test_calls_that_ask_for_no_key_exist_only_on_sockets_of_this_user():
    settings = Settings(adapters=AdapterSettings(roots=("/adapters",)))
    (spec,) = vllm_specs(settings.routing)
    names = {"VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"}
    for address, value in (("unix:/w.sock", "1"), ("http://10.0.0.7:8000", "0")):
        found = environment_of(spec, settings, place(address=address))
        assert {found[name] for name in names} == {value}, "said in any case: variables are inherited"


def test_a_server_listens_where_it_is_told():
    (spec,) = vllm_specs(Settings().routing)
    flags = arguments_of(spec, Settings(), place(address="http://10.0.0.7:8000"))
    assert flags[flags.index("--host") + 1 : flags.index("--host") + 4] == ["10.0.0.7", "--port", "8000"]
    assert "--uds" not in flags


def test_workers_that_have_embeddings_can_be_told_to_forget_them():
    found = lines("e-p-d")
    has = {name: "--worker-extension-cls" in flags for name, flags in found.items()}
    assert has == {"encode-0": True, "prefill-0": True, "decode-0": False}
    assert "--worker-extension-cls" not in lines(vllm={"ec_connector": "example"})["encode-0"]


def test_who_takes_embeddings_ends_what_is_computed_of_lost_ones():
    found = lines(topology="e-p-d")
    taking = [name for name, flags in found.items() if "--scheduler-cls" in flags]
    assert taking == ["prefill-0"]
    assert not any("--scheduler-cls" in flags for flags in lines(vllm={"ec_connector": "example"}).values())


def test_vllms_own_example_connector_can_be_had_to_compare():
    config = loaded(lines(vllm={"ec_connector": "example"})["encode-0"], "--ec-transfer-config")
    assert config["ec_connector"] == "ECExampleConnector"
    assert config["ec_connector_extra_config"] == {"shared_storage_path": "/ec"}


def test_a_hint_of_sizes_is_what_memory_is_reserved_for():
    found = lines("agg", vllm={"picture_hint": (640, 480)}, workers=1)
    assert loaded(found["worker-0"], "--limit-mm-per-prompt")["image"] == {"count": 5, "width": 640, "height": 480}


def test_a_model_without_eyes_is_told_nothing_of_media():
    found = lines("agg", takes_images=False, workers=1)
    assert not {"--limit-mm-per-prompt", "--allowed-media-domains", "--ec-transfer-config"} & set(found["worker-0"])


def test_devices_memory_and_parallelism_are_for_language_models():
    vllm = {"tensor_parallel": 2, "data_parallel": 3, "kv_cache_bytes": 7, "encoder_memory_share": 0.2}
    found = lines("e-pd", vllm=vllm, device="cuda")
    encoder, prefill = found["encode-0"], found["prefill-0"]
    assert encoder["--gpu-memory-utilization"] == "0.2"
    assert not {"--tensor-parallel-size", "--kv-cache-memory-bytes"} & set(encoder)
    assert (prefill["--tensor-parallel-size"], prefill["--data-parallel-size"]) == ("2", "3")
    assert "--pipeline-parallel-size" not in prefill
    assert prefill["--kv-cache-memory-bytes"] == "7"
    assert "--enforce-eager" not in prefill


def test_what_the_operator_adds_comes_last_and_only_where_it_belongs():
    vllm = {"extra_arguments": ("--seed", "1"), "encoder_arguments": ("--x", "e"), "decode_arguments": ("--x", "d")}
    found = lines("e-p-d", vllm=vllm | {"prefill_arguments": ("--x", "p")})
    assert {name: flags["--x"] for name, flags in found.items()} == {"encode-0": "e", "prefill-0": "p", "decode-0": "d"}
    assert all(flags["--seed"] == "1" for flags in found.values())


def test_on_cpu_threads_sleep_while_they_wait_for_each_other_unless_somebody_set_it_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert environment_of(SPEC, Settings(), place())["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_WAIT_POLICY" not in environment_of(SPEC, Settings(), place(device="cuda"))
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert environment_of(SPEC, Settings(), place())["OMP_WAIT_POLICY"] == "active"


def test_on_cpu_no_second_process_of_a_server_waits_without_sleeping_unless_somebody_set_it_otherwise(monkeypatch):
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    monkeypatch.delenv(name, raising=False)
    encoder, speaker = vllm_specs(RoutingSettings(topology="e-pd"))
    assert {environment_of(spec, Settings(), place())[name] for spec in (encoder, speaker)} == {"0"}
    assert name not in environment_of(SPEC, Settings(), place(device="cuda"))
    monkeypatch.setenv(name, "1")
    assert environment_of(SPEC, Settings(), place())[name] == "1"


def test_on_cpu_memory_for_keys_and_values_is_whole_gibibytes():
    settings = Settings(vllm=VllmSettings(kv_cache_bytes=2**30 + 1))
    assert environment_of(SPEC, settings, place())["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert environment_of(SPEC, Settings(), place())["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment_of(SPEC, settings, place(device="cuda"))


def test_servers_that_hand_keys_and_values_over_have_a_port_for_it():
    settings = Settings(routing=RoutingSettings(topology="e-p-d"))
    found = {spec.name: environment_of(spec, settings, place()) for spec in vllm_specs(settings.routing)}
    ports = {name: variables.get("VLLM_NIXL_SIDE_CHANNEL_PORT") for name, variables in found.items()}
    assert ports == {"encode-0": None, "prefill-0": "5000", "decode-0": "5000"}
    assert found["decode-0"]["UCX_TLS"] == "tcp,shm,self"
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" not in environment_of(SPEC, settings, place())


def adapted(spec, **adapters):
    settings = Settings(adapters=AdapterSettings(**adapters))
    where = place(adapters=[("abc", "/copies/abc")] if adapters.get("preload") else [])
    return arguments_of(spec, settings, where), environment_of(spec, settings, where)


def test_servers_that_speak_take_adapters_within_bounds_and_encoders_none():
    encoder, speaker = vllm_specs(RoutingSettings(topology="e-pd"))
    for given in ({"roots": ("/srv",)}, {"roots": ("/srv",), "preload": ("a=/srv/a",)}, {"preload": ("a=/srv/a",)}):
        line, variables = adapted(speaker, max_rank=20, **given)
        assert line[line.index("--max-lora-rank") + 1] == "32"
        assert line[line.index("--max-loras") + 1] == "4"
        assert int(line[line.index("--max-cpu-loras") + 1]) >= 4
        assert ("--lora-modules" in line) is ("preload" in given)
        is_open = variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
        assert is_open is ("roots" in given), "closed unless operators load"
        takes_none(*adapted(encoder, **given))
    takes_none(*adapted(speaker))
    line, _ = adapted(speaker, preload=("a=/srv/a",))
    assert json.loads(line[line.index("--lora-modules") + 1]) == {"name": "abc", "path": "/copies/abc"}


def takes_none(line, variables):
    assert not any("lora" in one.lower() for one in line)
    assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "0"
