"""`chiasm parity` on models of each shape, same and not."""

import json

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.engines.pooling.reference import HuggingFaceReference
from chiasm.errors import InvalidSettingError
from chiasm.launch import parity_pictures
from tests.numeric.pooling.models import as_sentence_transformer, build, build_clip, build_image_ranker, build_siglip


def run(*arguments):
    return CliRunner().invoke(app, ["parity", *map(str, arguments), "--set", "engine.threads=1"])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    labels = {0: "bad", 1: "good", 2: "odd"}
    return build(tmp_path_factory.mktemp("models") / "classifier", "roberta", "sequence", id2label=labels)


def test_the_same_model_passes(classifier):
    made = run(classifier, "--json")
    report = json.loads(made.stdout)
    assert (made.exit_code, report["is_passed"], report["task"], report["dtype"]) == (0, True, "classify", "float32")
    names = [one["name"] for one in report["comparisons"]]
    assert len(names) == 8
    assert {"labels", "token ids of each text", "largest class of each text, served to transformers"} <= set(names)


def test_other_shapes_pass_too(tmp_path):
    token = build(tmp_path / "token", "modernbert", "token", num_labels=3)
    dense = as_sentence_transformer(build(tmp_path / "dense", "qwen3"), "lasttoken", dense=8)
    late = as_sentence_transformer(build(tmp_path / "late", "bert"), "", dense=8, pools=False)
    for directory in (token, dense, late):
        made = run(directory)
        assert made.exit_code == 0, made.stdout


def test_a_coarser_dtype_fails_a_fine_tolerance_and_says_where(classifier):
    made = run(classifier, "--dtype", "bfloat16", "--tolerance", "1e-7")
    assert made.exit_code == 1
    assert "NOT the same" in made.stdout
    assert "allowed 1e-07; most in items" in made.stdout


def test_a_tolerance_that_nothing_keeps_is_refused(classifier):
    made = run(classifier, "--tolerance", "-1")
    assert made.exit_code != 0
    assert isinstance(made.exception, InvalidSettingError)


@pytest.mark.parametrize("words", [("--tolerance", "nan"), ("--threshold", "inf")])
def test_what_everything_would_pass_is_refused(classifier, words):
    made = run(classifier, *words)
    assert made.exit_code == 2
    assert isinstance(made.exception, SystemExit)


def test_a_tolerance_of_nothing_allows_nothing(classifier):
    made = run(classifier, "--dtype", "bfloat16", "--tolerance", "0")
    assert made.exit_code == 1
    assert "NOT the same" in made.stdout


def test_texts_and_pairs_of_ones_own(classifier, tmp_path):
    texts = tmp_path / "pairs.txt"
    texts.write_text("a review\tan aspect\nanother\tprice\n")
    report = json.loads(run(classifier, "--texts", texts, "--json").stdout)
    assert report["is_passed"]
    assert report["comparisons"][0]["num_items"] == 2
    texts.write_text("a pair\there\nno pair\n")
    assert run(classifier, "--texts", texts).exit_code != 0


@pytest.mark.parametrize("make", [build_clip, build_siglip])
def test_dual_encoders_pass_with_texts_and_pictures(make, tmp_path):
    report = json.loads(run(make(tmp_path / "m"), "--json").stdout)
    assert report["is_passed"], report
    assert [one["num_items"] for one in report["comparisons"]] == [8, 8, 8, 8, 8, 8, 5, 5]


def test_a_picture_that_comes_to_something_else_fails(tmp_path, monkeypatch):
    """The reference reads another preprocessing than what is served."""
    directory = build_clip(tmp_path / "m")
    opened = parity_pictures.open_picture
    monkeypatch.setattr("chiasm.launch.parity.open_picture", lambda item: opened(item).rotate(90))
    made = run(directory)
    assert made.exit_code == 1
    assert "FAIL  pictures, all in one request" in made.stdout


def test_pairs_are_nothing_for_dual_encoders(tmp_path):
    texts = tmp_path / "pairs.txt"
    texts.write_text("a review\tan aspect\n")
    made = run(build_clip(tmp_path / "m"), "--texts", texts)
    assert made.exit_code != 0
    assert "no pairs" in made.output + str(made.exception)


def test_yes_no_rerankers_pass_with_pairs(tmp_path):
    directory = build(tmp_path / "m", "qwen3", "causal")
    made = run(directory, "--set", "pooling.task=yes_no", "--set", "pooling.max_tokens=400", "--json")
    report = json.loads(made.stdout)
    assert report["is_passed"], report
    assert report["task"] == "score"
    assert [one["num_items"] for one in report["comparisons"]] == [8, 8, 8, 8, 8, 8]


@pytest.mark.parametrize("text", ["bert", "roberta"])
def test_image_rankers_pass_with_texts_for_pictures(text, tmp_path):
    texts = tmp_path / "pairs.txt"
    texts.write_text("a chair\tof oak\n<image> a chair\t\nsomething long about chairs, tables and beds\tand <image>\n")
    directory = build_image_ranker(tmp_path / "m", text)
    for chosen in ((), ("--texts", texts)):
        report = json.loads(run(directory, "--json", *chosen).stdout)
        assert report["is_passed"], report
        assert [one["num_items"] for one in report["comparisons"]] == [3 if chosen else 8] * 6


def test_the_reference_computes_each_text_once(classifier, monkeypatch):
    computed = []
    batch = HuggingFaceReference._batch
    monkeypatch.setattr(
        HuggingFaceReference, "_batch", lambda self, texts: computed.append(texts) or batch(self, texts)
    )
    assert run(classifier).exit_code == 0
    alone = [texts for texts in computed if len(texts) == 1]
    assert len(alone) == 8
