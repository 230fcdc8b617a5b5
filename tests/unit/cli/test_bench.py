"""`chiasm bench`: what is refused before anything is sent."""

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--goodput"], "--slo-ttft-ms"),
        (["--goodput", "--slo-ttft-ms", "5", "--peak", "3"], "choose one"),
        (["--peak", "3", "--rate", "2"], "Only an open loop has a rate"),
        (["--trace", "t.jsonl", "--rate", "2"], "Only an open loop has a rate"),
        (["--image-size", "640"], "write 640x480"),
        (["--image-size", "640x99999"], "from 8 to 16384"),
        (["--image-size", "٣x٣"], "is no size"),
        (["--rate", "0"], "--rate"),
        (["--arrivals", "bursty"], "--arrivals"),
    ],
)
def test_usage_is_explained(words, said):
    made = CliRunner().invoke(app, ["bench", URL, *words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert made.exit_code == 2
    assert said in " ".join(made.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([URL], "No answer from"),
        (["ftp://x"], "not a server's URL"),
        (["http://user:secret@x"], "not a server's URL"),
        ([URL, "--mix", "nothing.toml"], "cannot be read"),
        ([URL, "--trace", "nothing.jsonl"], "cannot be read"),
        ([URL, "--kind", "embeddings", "--images", "1"], "only kind 'chat'"),
        ([URL, "--api-key", "a\nb"], "printable"),
    ],
)
def test_what_cannot_be_done_is_one_error(words, said):
    from chiasm.errors import ChiasmError

    made = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(made.exception, ChiasmError)
    assert said in made.exception.message
    assert "secret" not in made.exception.message


def test_results_are_not_mixed_with_others(tmp_path):
    from chiasm.errors import InvalidSettingError

    (tmp_path / "old").touch()
    made = CliRunner().invoke(app, ["bench", URL, "--output", str(tmp_path)])
    assert isinstance(made.exception, InvalidSettingError)
    assert (tmp_path / "old").exists()
