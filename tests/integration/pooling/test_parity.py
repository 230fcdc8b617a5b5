"""`chiasm parity` on models of each shape, same and not."""

import json

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from tests.numeric.pooling.models import as_sentence_transformer, build


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
    assert len(names) == 6
    assert "labels" in names


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


def test_texts_and_pairs_of_ones_own(classifier, tmp_path):
    texts = tmp_path / "pairs.txt"
    texts.write_text("a review\tan aspect\nanother\tprice\n")
    report = json.loads(run(classifier, "--texts", texts, "--json").stdout)
    assert report["is_passed"]
    assert report["comparisons"][0]["num_items"] == 2
    texts.write_text("a pair\there\nno pair\n")
    assert run(classifier, "--texts", texts).exit_code != 0
