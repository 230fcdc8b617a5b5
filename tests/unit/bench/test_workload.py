"""What is sent follows from a seed, and is on disk before anything is sent."""

import base64
import io
import json
import math
import random
import statistics
from itertools import pairwise

import pytest
from PIL import Image

from chiasm.bench.workload.arrivals import arrival_times_s
from chiasm.bench.workload.bodies import BodyMaker, Dialect
from chiasm.bench.workload.classes import RequestClass, checked, read_mix
from chiasm.bench.workload.pictures import PictureSource, picture
from chiasm.bench.workload.plan import Plan
from chiasm.bench.workload.planning import Shape, phases, timetable, write_plan
from chiasm.bench.workload.trace import read_trace
from chiasm.errors import InvalidSettingError

DIALECT = Dialect(model="m")


@pytest.mark.parametrize(("pattern", "shape", "variation"), [("constant", 1, 0), ("poisson", 1, 1), ("gamma", 0.25, 2)])
def test_gaps_have_the_mean_and_the_variation_that_were_asked_for(pattern, shape, variation):
    times = arrival_times_s(pattern, 10.0, 20_000, "0", gamma_shape=shape)
    gaps = [right - left for left, right in pairwise(times)]
    assert times[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.06)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(variation, rel=0.06, abs=1e-9)


def test_the_same_seed_gives_the_same_pattern_at_every_rate():
    slow, fast = (arrival_times_s("poisson", rate, 50, "7") for rate in (1.0, 4.0))
    assert slow == pytest.approx([4 * at for at in fast])
    assert slow != arrival_times_s("poisson", 1.0, 50, "8")


def _pictures(body):
    parts = json.loads(body)["messages"][0]["content"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_pictures_have_format_and_size(kind):
    image = Image.open(io.BytesIO(picture("s", (96, 64), kind)))
    assert (image.format, image.size, image.mode) == (kind.upper(), (96, 64), "RGB")
    assert picture("s", (96, 64), kind) == picture("s", (96, 64), kind) != picture("t", (96, 64), kind)


def test_pictures_are_unique_unless_reuse_is_asked_for():
    def distinct(reuse):
        kind = RequestClass(images=1, image_width=8, image_height=8, image_reuse=reuse)
        source, rng = PictureSource(kind, "0"), random.Random(0)
        return len({source.next(rng)[1] for _ in range(200)})

    assert distinct(0.0) == 200
    assert distinct(1.0) == 1
    assert 70 < distinct(0.5) < 130


def test_a_token_budget_sets_the_area_and_keeps_the_ratio():
    width, height = RequestClass(images=1, image_width=640, image_height=320, image_tokens=512).image_size
    assert width * height == pytest.approx(512 * 1024, rel=0.1)
    assert width / height == pytest.approx(2, rel=0.1)
    assert width % 32 == height % 32 == 0


def test_bodies_ask_for_exactly_what_the_class_says():
    kind = RequestClass(images=2, image_width=32, image_height=32, text_tokens=11, output_tokens=9)
    body = json.loads(BodyMaker((kind,), DIALECT, "0").make(kind, 3))
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert len(content[2]["text"].split()) == 11
    assert body["max_tokens"] == body["min_tokens"] == 9
    assert body["ignore_eos"] is body["stream"] is body["stream_options"]["include_usage"] is True
    plain = json.loads(
        BodyMaker((kind,), Dialect(model="m", has_exact_length=False, has_receipts=False), "0").make(kind, 3)
    )
    assert not {"min_tokens", "ignore_eos", "chiasm"} & set(plain)


def test_bodies_of_other_apis():
    vectors, ranking = RequestClass(kind="embeddings", texts=3, text_tokens=5), RequestClass(kind="rerank", texts=2)
    maker = BodyMaker((vectors, ranking), DIALECT, "0")
    assert [len(text.split()) for text in json.loads(maker.make(vectors, 0))["input"]] == [5, 5, 5]
    assert set(json.loads(maker.make(ranking, 1))) == {"model", "query", "documents"}


def test_a_plan_is_read_back_as_it_was_written(tmp_path):
    classes = (RequestClass(name="a", weight=3), RequestClass(name="b", images=1, image_width=8, image_height=8))
    shape = Shape(rate_per_s=5, num_warmup=4, num_measured=30, num_cooldown=2)
    table = timetable(shape, classes, "1")
    write_plan(tmp_path, table, phases(4, 30, shape.num_requests), DIALECT, "1")
    plan = Plan(tmp_path)
    assert [one.phase for one in plan.requests] == ["warmup"] * 4 + ["measured"] * 30 + ["cooldown"] * 2
    assert [one.at_s for one in plan.requests] == pytest.approx([at for at, _ in table])
    assert {one.request_class for one in plan.requests} == {"a", "b"}
    bodies = [bytes(plan.body(one)) for one in plan.requests]
    assert len(set(bodies)) == len(bodies)
    for request, body in zip(plan.requests, bodies, strict=True):
        assert len(_pictures(body)) == (request.request_class == "b")
    head = plan.head(plan.requests[0], "host:1", "/p", b"X: y\r\n").decode()
    assert head.startswith("POST /p/v1/chat/completions HTTP/1.1\r\nHost: host:1\r\n")
    assert head.endswith(f"X: y\r\nContent-Length: {len(bodies[0])}\r\n\r\n")


def test_the_same_seed_writes_the_same_files(tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        table = timetable(Shape(rate_per_s=5, num_measured=6), (RequestClass(),), seed)
        write_plan(tmp_path / name, table, phases(0, 6, 6), DIALECT, seed)
    files = {
        name: [(tmp_path / name / file).read_bytes() for file in ("schedule.jsonl", "bodies.bin")] for name in "abc"
    }
    assert files["a"] == files["b"]
    assert files["a"][0] != files["c"][0]
    assert files["a"][1] != files["c"][1]


def test_a_share_of_requests_is_to_be_cancelled(tmp_path):
    kind = RequestClass(cancel_share=0.5, cancel_after_s=0.2)
    write_plan(
        tmp_path, timetable(Shape(rate_per_s=5, num_measured=200), (kind,), "0"), phases(0, 200, 200), DIALECT, "0"
    )
    cancelled = [one.cancel_after_s for one in Plan(tmp_path).requests if one.cancel_after_s is not None]
    assert set(cancelled) == {0.2}
    assert 60 < len(cancelled) < 140


def test_traces_keep_their_gaps_and_lengths(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"timestamp": 2500, "input_length": 7, "output_length": 3, "hash_ids": [1]}\n\n'
        '{"at_s": 1.5, "class": "b", "images": 2}\n'
    )
    table = read_trace(trace, (RequestClass(name="a"), RequestClass(name="b")))
    assert [at for at, _ in table] == [0, pytest.approx(1.0)]
    assert (table[0][1].name, table[0][1].images) == ("b", 2)
    assert (table[1][1].text_tokens, table[1][1].output_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Line 1"),
        ("{}", "neither at_s"),
        ('{"at_s": 0, "class": "x"}', "'x'"),
        ("", "no requests"),
        ('{"at_s": -1}', "Line 1"),
    ],
)
def test_a_bad_trace_names_its_line(tmp_path, line, said):
    (tmp_path / "t.jsonl").write_text(line + "\n")
    with pytest.raises(InvalidSettingError, match=said):
        read_trace(tmp_path / "t.jsonl", (RequestClass(),))


def test_mixes(tmp_path):
    mix = tmp_path / "mix.toml"
    mix.write_text('[[class]]\nname = "text"\nweight = 3\n[[class]]\nname = "picture"\nimages = 1\n')
    assert [(one.name, one.weight, one.images) for one in read_mix(mix)] == [("text", 3, 0), ("picture", 1, 1)]
    for text in ('[[class]]\nnme = "x"\n', "[[class]]\nweight = 0\n", "class = 3\n", "x", "[[class]]\n[[class]]\n"):
        mix.write_text(text)
        with pytest.raises(InvalidSettingError):
            read_mix(mix)
    with pytest.raises(InvalidSettingError):
        read_mix(tmp_path / "none.toml")
    with pytest.raises(InvalidSettingError, match="only kind 'chat'"):
        checked([RequestClass(kind="embeddings", images=1)])


def test_weights_are_shares():
    table = timetable(
        Shape(rate_per_s=1, num_measured=4000), (RequestClass(name="a", weight=3), RequestClass(name="b")), "0"
    )
    assert sum(kind.name == "a" for _, kind in table) / 4000 == pytest.approx(0.75, abs=4 * math.sqrt(0.1875 / 4000))
