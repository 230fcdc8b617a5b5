"""A report of the packaged model behind a real server, as files, against a baseline, and in a browser."""

import json

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.launch.local import background_server
from chiasm.settings import resolve
from tests.integration.browser import CHROMIUM, browsing
from tests.numeric import minilm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_QUICK = ["--seconds", "0.2", "--concurrency", "1,2", "--images", "0,1", "--sizes", "64", "--output-tokens", "8"]
_OUTSIDE = """[...document.querySelectorAll('svg text')].filter((text) => {
  const frame = text.closest('svg').getBoundingClientRect(), box = text.getBoundingClientRect();
  return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
}).map((text) => text.textContent)"""


def run(*arguments):
    return CliRunner().invoke(app, ["report", *arguments])


@pytest.fixture(scope="module")
def server():
    overrides = ["gateway.port=0", "gateway.api_keys=['secret-key']"]
    with background_server(resolve(environment={}, overrides=overrides).settings, lambda what, share: None) as made:
        yield made


@pytest.fixture(scope="module")
def folder(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    outputs = [part for form in ("html", "md", "json") for part in ("--output", str(folder / f"r.{form}"))]
    result = run(server.address, *outputs, *_QUICK, "--api-key", "secret-key")
    assert result.exit_code == 0, result.output + str(result.exception)
    return folder


def test_cells_are_measured_and_add_up(folder):
    found = json.loads((folder / "r.json").read_text())
    assert [cell["key"] for cell in found["stages"]] == ["text", "1x64"]
    assert [cell["concurrency"] for cell in found["concurrency"]] == [1, 2]
    for cell in (*found["stages"], *found["concurrency"], *found["caches"]):
        assert cell["outcomes"] == {"finished": cell["num_requests"]}
        stages = cell["stages"]
        parts = sum(stages["stages_ms"].values()) + stages["unaccounted_ms"] + stages["outside_ms"]
        assert parts == pytest.approx(stages["ttft_ms"], rel=0.01)
        assert len(cell["samples"]["ttft_ms"]) == cell["num_requests"]
    new, again = found["caches"]
    assert (new["share_avoided_pictures"], again["share_avoided_pictures"]) == (0, 1)
    assert found["growth"]["num_finished"] == 2
    assert found["memory"][0]["parts"]
    assert [one["what"] for one in found["examples"]] == ["usual", "slow"]


def test_what_should_be_refused_is_and_nothing_secret_is_told(folder):
    found = json.loads((folder / "r.json").read_text())
    assert len(found["refusals"]) == 6
    assert all(one["code"] and one["status"] >= 400 for one in found["refusals"])
    for form in ("html", "md", "json"):
        text = (folder / f"r.{form}").read_text()
        assert "secret-key" not in text
        assert "base64," not in text
        assert "/etc/passwd" not in text


def test_against_itself_nothing_is_worse_and_against_a_faster_past_it_is(server, folder, tmp_path):
    arguments = (server.address, *_QUICK, "--api-key", "secret-key", "--output", str(tmp_path / "n.html"))
    past = json.loads((folder / "r.json").read_text())
    for cell in past["stages"]:
        cell["samples"]["ttft_ms"] = [value / 50 for value in cell["samples"]["ttft_ms"]]
    (tmp_path / "past.json").write_text(json.dumps(past))
    worse = run(*arguments, "--baseline", str(tmp_path / "past.json"))
    assert worse.exit_code == 1
    assert "text TTFT: regression" in worse.output
    assert 'class="mark"' in (tmp_path / "n.html").read_text()
    calm = run(*arguments, "--baseline", str(folder / "r.json"), "--tolerance", "10")
    assert calm.exit_code == 0, calm.output


def test_a_model_that_generates_nothing_is_measured_by_what_it_does(tmp_path):
    overrides = ["gateway.port=0", f"engine.model={minilm.directory()}"]
    with background_server(resolve(environment={}, overrides=overrides).settings, lambda what, share: None) as made:
        outputs = [part for form in ("html", "json") for part in ("--output", str(tmp_path / f"p.{form}"))]
        result = run(made.address, *outputs, *_QUICK)
    assert result.exit_code == 0, result.output + str(result.exception)
    found = json.loads((tmp_path / "p.json").read_text())
    assert found["load"]["kind"] == "embeddings"
    assert all(cell["ttft"] is None and cell["e2el"]["p50_ms"] > 0 for cell in found["concurrency"])
    assert "forward" in found["examples"][0]["receipt"]["stages_s"]
    assert "TTFT p50" not in (tmp_path / "p.html").read_text().partition("Where each number comes from")[0]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
async def test_the_page_fits_and_asks_for_nothing(folder, tmp_path, width, scheme):
    url = (folder / "r.html").as_uri()
    async with browsing(tmp_path) as page:
        await page.open(url, width=width, scheme=scheme)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await page.evaluate(_OUTSIDE) == []
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(20, 23, 26)") == (scheme == "dark")
        assert page.requested == [url]
        assert page.problems == []


@pytest.mark.parametrize(
    "arguments", [["--output", "r.pdf"], ["--output", "nowhere/r.html"], ["--concurrency", "0"], ["--images", "a"]]
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(arguments):
    result = run("http://127.0.0.1:9", *arguments)
    assert result.exit_code != 0
    assert "No answer" not in str(result.exception)
