"""Names of new plugin packages: which make one that works, and which would hide something."""

import runpy

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.pooling.io.base import IOProcessor
from chiasm.pooling.plugin_package import write_plugin_package
from chiasm.protocol.pooling.work import PoolingInfo

INFO = PoolingInfo(tasks=("score",), max_tokens=8)


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("quality-scorer", "QualityScorer"),
        ("a-1", "A1Scorer"),
        ("none", "NoneScorer"),  # words and names that the files themselves use
        ("true", "TrueScorer"),
        ("item", "ItemScorer"),
        ("text", "TextScorer"),
        ("sequence", "SequenceScorer"),
        ("scorer-data", "ScorerDataScorer"),
    ],
)
def test_whatever_its_name_the_scorer_works(tmp_path, name, class_name):
    written = write_plugin_package(name, tmp_path)
    assert all(one.is_relative_to(tmp_path / name) and one.is_file() for one in written)
    [scorer] = [one for one in written if one.name == "scorer.py"]
    kind = runpy.run_path(str(scorer))[class_name]
    assert issubclass(kind, IOProcessor)
    assert kind.name == name.replace("-", "_")
    assert kind(INFO).parse({"query": "q", "items": [{"id": 1, "passages": ["x"]}]}).items[0].id == 1


@pytest.mark.parametrize(
    "name",
    ["", "../up", "a/b", "a.b", "a--b", "-a", "Quality", "9lives", "a_b", "class", "a\n", "a" * 61],
)
def test_what_is_no_name(tmp_path, name):
    with pytest.raises(InvalidSettingError, match="cannot be the name") as caught:
        write_plugin_package(name, tmp_path)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["chiasm", "chiasm-reranker", "reranker", "image-ranker", "json", "numpy", "msgspec"])
def test_names_that_are_taken(tmp_path, name):
    with pytest.raises(InvalidSettingError, match=r"ships|installed"):
        write_plugin_package(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(InvalidSettingError, match="File exists"):
        write_plugin_package("mine", tmp_path)
    assert list((tmp_path / "mine").iterdir()) == []
