"""What a server says of its memory is what it took: weights, growth with requests, caches, for every process."""

import json
import math

import pytest
from aiohttp.test_utils import unused_port
from safetensors import safe_open
from typer.testing import CliRunner

from chiasm.bench.server import ServerView
from chiasm.bench.target import parse_target
from chiasm.bench.workload.bodies import Dialect
from chiasm.bench.workload.classes import RequestClass
from chiasm.cli.app import app
from chiasm.launch.local import background_server
from chiasm.launch.model import model_directory
from chiasm.reporting.growth import measure_growth, memory_of
from chiasm.settings import resolve

_TOKENS, _WORDS = 96, 20


@pytest.fixture(scope="module")
def address():
    settings = resolve(environment={}, overrides=["gateway.port=0"]).settings
    with background_server(settings, lambda what, share: None) as server:
        yield server.address


@pytest.fixture
async def server(address):
    async with ServerView(parse_target(address)) as view:
        yield view


def part(worker, name):
    return next(one for one in worker.parts if one.name == name)


def _weights_of_the_packaged_model():
    """How many numbers there are, counted in the file."""
    numbers = {"vision": 0, "text": 0}
    with safe_open(model_directory("") / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            numbers["vision" if "visual" in name else "text"] += math.prod(file.get_slice(name).get_shape())
    return numbers


async def test_parts_are_plausible(server):
    (worker,) = await memory_of(server)
    weights = worker.used_bytes("weights")
    numbers = _weights_of_the_packaged_model()
    assert part(worker, "tower").used_bytes == pytest.approx(4 * numbers["vision"], rel=0.1), "kept as float32"
    assert 2 * numbers["text"] <= part(worker, "decoder").used_bytes <= 4 * numbers["text"], "matrices as bfloat16"
    assert weights < worker.process.rss_bytes <= worker.process.peak_rss_bytes
    assert worker.used_bytes("requests") == 0, "nobody asks"
    slots = part(worker, "kv_slots")
    assert slots.reserved_bytes % (worker.kv_bytes_per_token * 16) == 0, "16 slots of the context's tokens"
    assert worker.allocator.used_bytes > weights / 2
    assert not worker.devices


async def test_growth_of_requests_is_what_their_tokens_take(server):
    dialect = Dialect(model="tiny_vlm")
    kind = RequestClass(images=0, text_tokens=_WORDS, output_tokens=_TOKENS)
    growth = await measure_growth(server, dialect, kind, 4)
    assert growth.num_finished == 4
    (worker,) = await memory_of(server)
    per_token = worker.kv_bytes_per_token
    peak = part(worker, "kv_slots").peak_bytes
    assert per_token * _TOKENS < peak <= per_token * 4 * (_TOKENS + 12 * _WORDS)
    assert 0 < growth.used_bytes_per_request <= math.ceil(peak / 4) + per_token
    assert part(worker, "kv_slots").used_bytes == 0, "given back"
    assert growth.kept_cache_bytes > 0, "prefixes are kept"


async def test_a_picture_stays_in_the_embedding_cache(server):
    before = part((await memory_of(server))[0], "cached_embeddings").used_bytes
    kind = RequestClass(images=1, image_width=64, image_height=64, output_tokens=2)
    for count in (1, 2):  # a second measurement meets nothing that the first has left
        await measure_growth(server, Dialect(model="tiny_vlm"), kind, 1)
        (worker,) = await memory_of(server)
        gained = part(worker, "cached_embeddings").used_bytes - before
        assert gained == count * 4 * worker.embedding_bytes_per_token
    assert part(worker, "held_embeddings").used_bytes == 0


async def test_metrics_say_the_same(server):
    _, page = await server.send("GET", "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in page.decode().splitlines() if not line.startswith("#"))
    (worker,) = await memory_of(server)
    shown = float(lines['chiasm_memory_used_bytes{kind="weights",part="decoder",worker="local"}'])
    assert shown == part(worker, "decoder").used_bytes
    assert float(lines['chiasm_process_rss_bytes{worker="local"}']) == pytest.approx(worker.process.rss_bytes, rel=0.1)


def test_the_command_prints_tables_and_json(address):
    runner = CliRunner()
    shown = runner.invoke(app, ["memory", address, "--requests", "2", "--images", "0", "--output-tokens", "16"])
    assert shown.exit_code == 0, shown.output
    assert "kv_slots" in shown.output
    assert "2 of 2 requests finished" in shown.output
    found = json.loads(runner.invoke(app, ["memory", address, "--json"]).stdout)
    assert found["workers"][0]["worker"] == "local"
    assert found["growth"] is None


def test_nobody_there_is_one_line():
    result = CliRunner().invoke(app, ["memory", f"http://127.0.0.1:{unused_port()}"])
    assert result.exit_code != 0
    assert "No answer" in str(result.exception)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_process_of_a_fleet_tells_its_own():
    settings = resolve(environment={}, overrides=["gateway.port=0", "routing.topology=e-pd"]).settings
    with background_server(settings, lambda what, share: None) as fleet:
        async with ServerView(parse_target(fleet.address)) as view:
            workers = {one.worker: one for one in await memory_of(view)}
    assert workers["gateway"].process is not None
    encoder, language = (workers[name] for name in sorted(workers.keys() - {"gateway"}))
    assert {one.name for one in encoder.parts if one.kind == "weights"} == {"tower"}
    assert part(language, "decoder").used_bytes > 0
    assert part(encoder, "offers").reserved_bytes > 0
