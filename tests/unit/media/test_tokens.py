import json
import os

import pytest
import typer
from typer.testing import CliRunner

from chiasm.cli.tokens import tokens
from chiasm.errors import MediaError, MediaFetchError, UnsupportedModelError
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer
from chiasm.media.tokens import media_tokens
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import FORMATS, animation, encode, exif_block, gradient, noise, png
from tests.unit.media.video.clips import clip


@pytest.mark.parametrize("kind", FORMATS)
def test_facts_come_from_headers(tmp_path, preparer, kind):
    file = tmp_path / "picture"
    file.write_bytes(encode(noise(400, 300), kind))
    counted = media_tokens(file, preparer, MediaSettings())
    assert (counted.format, counted.width, counted.height) == (kind, 400, 300)
    assert (counted.num_visual_tokens, counted.num_prompt_tokens) == (120_000, 120_002)
    assert preparer.prepared == []


def test_orientation_and_animation_are_found_wherever_they_stand(tmp_path, preparer):
    file = tmp_path / "picture"
    file.write_bytes(encode(noise(400, 300), "webp", lossless=True, exif=exif_block(6)[6:]))
    assert media_tokens(file, preparer, MediaSettings()).orientation == 6
    file.write_bytes(animation("gif", size=(500, 400)))
    assert media_tokens(file, preparer, MediaSettings()).is_animated


def test_of_a_jpeg_only_the_beginning_is_read(tmp_path, preparer):
    file = tmp_path / "picture"
    data = encode(noise(700, 500), "jpeg", exif=exif_block(8), quality=95)
    assert len(data) > 3 * 65536
    file.write_bytes(data[:70_000])
    assert media_tokens(file, preparer, MediaSettings()).width == 500


def test_a_videos_frames_are_counted_and_their_number_can_be_asked_for(tmp_path):
    processor = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    preparer = Qwen2VLPreparer(tmp_path, processor, {"model_type": "qwen2_vl", "video_token_id": 1})
    file = tmp_path / "clip"
    file.write_bytes(clip(24, degrees=90))
    asked = media_tokens(file, preparer, MediaSettings(), 8)
    assert (asked.format, asked.width, asked.height, asked.num_frames) == ("mp4", 64, 96, 8)
    frames, rows, columns = asked.grid_thw
    assert (frames, asked.num_visual_tokens) == (4, frames * rows * columns // 4)
    assert media_tokens(file, preparer, MediaSettings()).num_frames == 4
    with pytest.raises(MediaError, match="the limit is 100"):
        media_tokens(file, preparer, MediaSettings(max_item_bytes=100))


def test_a_video_is_refused_for_a_model_that_takes_none(tmp_path, preparer):
    file = tmp_path / "clip"
    file.write_bytes(clip(2))
    with pytest.raises(MediaError, match="takes no videos"):
        media_tokens(file, preparer, MediaSettings())


class TestCommand:
    @pytest.fixture
    def run(self):
        app = typer.Typer()
        app.command()(tokens)
        return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])

    def test_a_table_for_the_packaged_model(self, run, tmp_path):
        (tmp_path / "a.jpg").write_bytes(encode(gradient(200, 120), "jpeg", exif=exif_block(6)))
        (tmp_path / "b.gif").write_bytes(animation("gif", size=(64, 64)))
        result = run(tmp_path / "a.jpg", tmp_path / "b.gif")
        assert result.exit_code == 0
        head, first, second = result.stdout.splitlines()
        assert head.split() == [
            "file",
            "format",
            "size",
            "turned",
            "resized",
            "tiles",
            "grid",
            "tokens",
            "in",
            "prompt",
        ]
        assert "120x200" in first
        assert "EXIF 6" in first
        assert "gif animated" in second

    def test_json_is_exact(self, run, tmp_path):
        file = tmp_path / "a.png"
        file.write_bytes(encode(gradient(200, 120), "png"))
        result = run("--json", file)
        [row] = json.loads(result.stdout)
        frames, rows, columns = row["grid_thw"]
        assert (frames, rows, columns) == (1, row["resized"][1] // 16, row["resized"][0] // 16)
        assert row["num_visual_tokens"] == rows * columns // 4
        assert row["num_prompt_tokens"] >= row["num_visual_tokens"]

    def test_refused_files_are_reported_and_the_others_counted(self, run, tmp_path):
        (tmp_path / "bomb.png").write_bytes(png(40_000, 40_000))
        (tmp_path / "page.jpg").write_bytes(b"<html></html>")
        (tmp_path / "good.png").write_bytes(encode(gradient(), "png"))
        result = run(*(tmp_path / name for name in ("bomb.png", "page.jpg", "missing.png", "good.png")))
        assert result.exit_code == 1
        assert "1600000000 pixels" in result.stderr
        assert "HTML" in result.stderr
        assert "missing.png" in result.stderr
        assert len(result.stdout.splitlines()) == 2

    def test_programs_find_refused_files_in_their_places(self, run, tmp_path):
        (tmp_path / "good.png").write_bytes(encode(gradient(), "png"))
        result = run("--json", tmp_path / "missing.png", tmp_path / "good.png")
        assert result.exit_code == 1
        refused, counted = json.loads(result.stdout)
        assert refused["file"] == str(tmp_path / "missing.png")
        assert refused["error"]["code"] == "media_fetch_failed"
        assert counted["num_visual_tokens"] > 0

    def test_a_model_that_takes_no_pictures(self, run, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        result = run("--model", tmp_path, tmp_path / "a.png")
        assert isinstance(result.exception, UnsupportedModelError)
        assert "takes no pictures" in str(result.exception)


@pytest.mark.timeout(10)
def test_a_pipe_is_not_waited_for(tmp_path, preparer):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MediaFetchError, match="no regular file"):
        media_tokens(tmp_path / "pipe", preparer, MediaSettings())


def test_a_file_that_cannot_be_read(tmp_path, preparer):
    with pytest.raises(MediaError, match="cannot be read"):
        media_tokens(tmp_path / "missing", preparer, MediaSettings())
