"""`chiasm media frames` says what was taken of a video, and writes it down."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from chiasm.cli.media import media

pytest.importorskip("av", reason="the extra video is not installed")

from tests.unit.media.video.clips import clip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip(degrees=90))
    return path


def test_facts_and_times_are_printed(file):
    result = CliRunner().invoke(media, ["frames", str(file)])
    assert result.exit_code == 0, result.output
    assert "h264 in mp4, 64x96, turned, 48 frames, 2.00 s, 24 frames/s" in result.output
    assert "4 frames: 0 (0.00 s), 12 (0.50 s), 24 (1.00 s), 36 (1.50 s)" in result.output


def test_json_holds_the_same(file):
    result = CliRunner().invoke(media, ["frames", str(file), "--count", "6", "--json"])
    [found] = json.loads(result.stdout)
    assert found["indices"] == [0, 8, 16, 24, 32, 40]
    assert found["times_s"][1] == pytest.approx(1 / 3)
    assert (found["stored_width"], found["stored_height"]) == (96, 64)


def test_frames_are_written(file, tmp_path):
    result = CliRunner().invoke(media, ["frames", str(file), "--fps", "1", "--save", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    written = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in written] == [f"clip-{at:06}.png" for at in (0, 12, 24, 36)], "at least four"
    with Image.open(written[1]) as image:
        assert image.size == (64, 96)


def test_what_is_no_video_is_refused_and_the_rest_goes_on(file, tmp_path):
    other = tmp_path / "text.txt"
    other.write_text("hello")
    result = CliRunner().invoke(media, ["frames", str(other), str(file)])
    assert result.exit_code == 1
    assert "text.txt: refused, media_unsupported" in result.stderr
    assert "48 frames" in result.stdout


def test_programs_find_refused_files_in_their_places(file, tmp_path):
    other = tmp_path / "text.txt"
    other.write_text("hello")
    result = CliRunner().invoke(media, ["frames", str(other), str(file), "--json"])
    refused, sampled = json.loads(result.stdout)
    assert (refused["file"], refused["error"]["code"]) == (str(other), "media_unsupported")
    assert sampled["num_frames"] == 48
