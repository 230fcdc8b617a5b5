import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import chiasm.media
from chiasm.cli.app import app
from chiasm.errors import UnsupportedModelError
from chiasm.media import MediaSettings, check_media, content_identity
from tests.unit.media.audio.sounds import tone, wav
from tests.unit.media.pictures import animation, data_url, encode, exif_block, gradient, png
from tests.unit.media.video.clips import clip

PAGE = Path(__file__).parents[3] / "docs" / "media.md"
QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "turned.jpg").write_bytes(encode(gradient(24, 16), "jpeg", exif=exif_block(6)))
    (tmp_path / "flat.gif").write_bytes(animation("gif"))
    (tmp_path / "cut.png").write_bytes(encode(gradient(), "png")[:-40])
    (tmp_path / "bomb.png").write_bytes(png(60_000, 60_000))
    (tmp_path / "page.jpg").write_bytes(b"<html><body>sign in</body></html>")
    (tmp_path / "a b%20#?.png").write_bytes(encode(gradient().convert("RGBA"), "png"))
    return tmp_path


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "preprocessor_config.json").write_text(json.dumps(QWEN))
    return directory


def run(*words):
    done = CliRunner().invoke(app, ["media", "check", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


async def test_a_picture_is_described(folder):
    file = folder / "turned.jpg"
    verdict = await check_media(str(file), MediaSettings())
    facts = verdict.picture
    assert (verdict.is_accepted, verdict.refusal, verdict.source) == (True, None, str(file))
    assert (facts.format, facts.width, facts.height, facts.orientation, facts.mode) == ("jpeg", 16, 24, 6, "RGB")
    assert facts.identity == content_identity(file.read_bytes())
    assert facts.num_bytes == file.stat().st_size
    assert facts.decode_s > 0
    assert facts.num_visual_tokens is None


@pytest.mark.parametrize(
    ("kind", "convert", "mode"),
    [("jpeg", "CMYK", "CMYK"), ("jpeg", "L", "L"), ("png", "P", "P"), ("png", "1", "1"), ("png", "RGBA", "RGBA")],
)
async def test_the_colour_mode_is_that_of_the_stored_pixels(kind, convert, mode):
    verdict = await check_media(data_url(encode(gradient().convert(convert), kind)), MediaSettings())
    assert verdict.picture.mode == mode


@pytest.mark.parametrize(
    ("name", "options", "code", "cause", "is_header_known"),
    [
        ("cut.png", {}, "media_undecodable", "The png data is", True),
        ("bomb.png", {}, "media_too_large", "3600000000 pixels", False),
        ("page.jpg", {}, "media_unsupported", "The data is HTML", False),
        ("absent.png", {}, "media_fetch_failed", "no readable regular file", False),
        ("", {}, "media_fetch_failed", "no readable regular file", False),
        ("flat.gif", {"animated": "refuse"}, "media_unsupported", "Animated", False),
        ("turned.jpg", {"max_item_bytes": 100}, "media_too_large", "the limit is 100", False),
    ],
)
async def test_refusals_read_as_those_of_the_server(folder, name, options, code, cause, is_header_known):
    verdict = await check_media(str(folder / name), MediaSettings(**options))
    assert not verdict.is_accepted
    assert verdict.refusal.code == code
    assert cause in verdict.refusal.cause
    assert "Media item" not in verdict.refusal.cause
    assert (verdict.picture is not None) == is_header_known


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("https://user:word@img.example/a.png?sig=secret", "https://img.example/a.png"),
        ("https://img.example/a.png?sig=secret#secret", "https://img.example/a.png"),
        ("data:image/png;base64,secret", "data:image/png;base64"),
        ("ftp://img.example/secretless", "ftp://img.example/secretless"),
        ("file:///etc/passwd", "file:///etc/passwd"),
        ("HTTPS://img.example/", "HTTPS://img.example/"),
        ("https://img.example/" + 9000 * "a", "https://img.example/" + 180 * "a" + "..."),
    ],
)
async def test_url_policy_applies_and_secrets_are_not_repeated(source, shown):
    verdict = await check_media(source, MediaSettings())
    assert verdict.source == shown
    assert not verdict.is_accepted
    assert "secret" not in verdict.refusal.cause


@pytest.mark.timeout(10)
async def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    verdict = await check_media(str(tmp_path / "pipe"), MediaSettings())
    assert verdict.refusal.cause == "There is no readable regular file at this path"


async def test_a_path_may_lie_anywhere_and_a_file_url_may_not(folder):
    file = folder / "a b%20#?.png"
    assert (await check_media(str(file), MediaSettings())).is_accepted
    assert (await check_media(file.as_uri(), MediaSettings())).refusal.code == "media_refused"
    assert (await check_media(file.as_uri(), MediaSettings(allowed_root=str(folder)))).is_accepted


async def test_tiles_are_held_against_their_limit(preparer, monkeypatch):
    plan = preparer.plan
    monkeypatch.setattr(preparer, "plan", lambda *size: msgspec.structs.replace(plan(*size), tiles=(2, 3)))
    picture = data_url(encode(gradient(20, 10), "png"))
    verdict = await check_media(picture, MediaSettings(), preparer)
    assert (verdict.is_accepted, verdict.picture.num_tiles) == (True, 6)
    [limit] = [limit for limit in verdict.limits if limit.setting == "media.max_item_tiles"]
    assert (limit.most, limit.found) == (144, 6)
    refused = await check_media(picture, MediaSettings(max_item_tiles=5), preparer)
    assert (refused.refusal.code, "6 tiles; the limit is 5" in refused.refusal.cause) == ("media_too_large", True)


async def test_a_models_own_limits_apply(preparer):
    verdict = await check_media(data_url(encode(gradient(20, 10), "png")), MediaSettings(), preparer)
    assert (verdict.picture.num_visual_tokens, verdict.picture.num_prompt_tokens) == (200, 202)
    too_many = await check_media(
        data_url(encode(gradient(20, 10), "png")), MediaSettings(max_visual_tokens=199), preparer
    )
    assert "200 visual tokens" in too_many.refusal.cause
    impossible = await check_media(data_url(encode(gradient(13, 10), "png")), MediaSettings(), preparer)
    assert impossible.refusal.code == "media_refused"


async def test_a_video_is_described_and_decoded(tmp_path):
    file = tmp_path / "clip"
    file.write_bytes(clip(24, degrees=90))
    verdict = await check_media(str(file), MediaSettings(), num_frames=6)
    facts = verdict.video
    assert (verdict.is_accepted, verdict.picture, verdict.audio) == (True, None, None)
    assert (facts.container, facts.codec, facts.width, facts.height) == ("mp4", "h264", 64, 96)
    assert (facts.num_frames, facts.num_sampled, facts.duration_s) == (24, 6, 1.0)
    assert facts.decode_s > 0
    assert {limit.setting: limit.found for limit in verdict.limits}["media.max_video_frames"] == 24
    short = await check_media(str(file), MediaSettings(max_video_frames=20))
    assert (short.refusal.code, short.video) == ("media_too_large", None)


async def test_a_video_that_cannot_be_decoded_is_refused_with_what_its_headers_say(tmp_path):
    file, data = tmp_path / "clip", clip(24)
    at = data.index(b"mdat") + 4
    file.write_bytes(data[:at] + bytes(900) + data[at + 900 :])
    verdict = await check_media(str(file), MediaSettings())
    assert verdict.refusal.code == "media_undecodable"
    assert (verdict.video.num_frames, verdict.video.codec, verdict.video.decode_s) == (24, None, None)


async def test_audio_is_described_and_decoded(preparer):
    verdict = await check_media(data_url(wav([tone(), tone()]), "audio/wav"), MediaSettings())
    facts = verdict.audio
    assert (verdict.is_accepted, facts.container, facts.codec) == (True, "wav", "pcm_s16le")
    assert (facts.rate, facts.num_channels, facts.duration_s) == (16_000, 2, 1.0)
    assert facts.decode_s > 0
    refused = await check_media(data_url(wav(tone()), "audio/wav"), MediaSettings(max_audio_s=0.5))
    assert "longer than the limit of 0.5 s" in refused.refusal.cause
    deaf = await check_media(data_url(wav(tone()), "audio/wav"), MediaSettings(), preparer)
    assert (deaf.refusal.code, deaf.refusal.cause) == ("media_unsupported", "This model takes no audio")


@pytest.mark.parametrize(("name", "cause"), [("a.MP4", "no video"), ("b.flac", "no audio"), ("c", "The data is HTML")])
async def test_of_a_url_that_is_not_read_yet_the_name_decides(folder, name, cause):
    (folder / name).write_bytes((folder / "page.jpg").read_bytes())
    verdict = await check_media((folder / name).as_uri(), MediaSettings(allowed_root=str(folder)))
    assert cause in verdict.refusal.cause


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "The data is HEIC, not a picture of a supported format"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "avif"),
    ],
)
async def test_pictures_in_the_container_of_videos_are_judged_as_pictures(tmp_path, head, cause):
    (tmp_path / "a").write_bytes(head + bytes(100))
    verdict = await check_media(str(tmp_path / "a"), MediaSettings())
    assert cause in verdict.refusal.cause


@pytest.mark.parametrize(
    ("source", "kind", "cause"),
    [
        (data_url(wav(tone()), "image/png"), "image", "The data is WAVE sound"),
        (data_url(encode(gradient(), "png")), "video", "no video of a supported container"),
        (data_url(encode(gradient(), "png")), "audio", "no audio of a supported format"),
    ],
)
async def test_what_it_is_sent_as_can_be_said(source, kind, cause):
    assert cause in (await check_media(source, MediaSettings(), kind=kind)).refusal.cause


class TestCommand:
    def test_all_accepted(self, folder, model):
        done = run(folder / "turned.jpg", folder / "flat.gif", "--model", model)
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert lines[0] == f"{folder}/turned.jpg: accepted"
        assert lines[1].startswith("  jpeg 16x24, RGB, turned by EXIF orientation 6, ")
        assert lines[1].endswith("6 visual tokens, 6 in the prompt")
        assert lines[2].startswith("  limits: max_item_bytes ")
        assert "max_item_pixels 384 of 4e+07, max_aspect_ratio 1.5 of 200, max_visual_tokens 6 of 16384" in lines[2]
        assert lines[3] == f"  identity {content_identity((folder / 'turned.jpg').read_bytes())}"
        assert "animated" in lines[5]

    def test_one_refused(self, folder):
        done = run(folder / "page.jpg", folder / "turned.jpg")
        assert done.exit_code == 1
        lines = done.stdout.splitlines()
        assert lines[0] == f"{folder}/page.jpg: refused, media_unsupported"
        assert lines[1:3] == [
            "  The data is HTML, not a picture of a supported format",
            "  Send JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF",
        ]
        assert lines[3] == f"{folder}/turned.jpg: accepted"

    def test_json(self, folder):
        done = run(folder / "cut.png", folder / "turned.jpg", "--json")
        assert done.exit_code == 1
        cut, turned = json.loads(done.stdout)
        assert (cut["is_accepted"], cut["refusal"]["code"]) == (False, "media_undecodable")
        assert cut["picture"]["decode_s"] is None
        assert (turned["is_accepted"], turned["refusal"], turned["picture"]["orientation"]) == (True, None, 6)

    def test_videos_and_audio(self, folder):
        (folder / "clip.bin").write_bytes(clip(12, container="matroska"))
        (folder / "speech.bin").write_bytes(wav(tone()))
        done = run(folder / "clip.bin", folder / "speech.bin", folder / "turned.jpg", "--num-frames", 4)
        assert done.exit_code == 0, done.stdout
        lines = done.stdout.splitlines()
        assert lines[1].startswith("  h264 in matroska, 96x64, 12 frames in 0.50 s, 4 of them looked at, ")
        assert lines[5].startswith("  pcm_s16le in wav, 16000 samples/s, 1 channel, 1.00 s, 32044 bytes, decoded in ")
        assert lines[6] == "  no model that is served here takes audio: in a request it is refused all the same"
        assert lines[7] == (
            "  limits: max_item_bytes 32044 of 2.09715e+07, max_audio_s 1 of 1200, max_audio_channels 1 of 8"
        )
        assert run(folder / "clip.bin", "--as", "image").exit_code == 1

    def test_settings(self, folder):
        assert run(folder / "turned.jpg", "--set", "media.max_item_pixels=100").exit_code == 1
        file = (folder / "turned.jpg").as_uri()
        assert run(file).exit_code == 1
        assert run(file, "--set", f"media.allowed_root={folder}").exit_code == 0

    def test_a_model_without_pictures(self, folder):
        done = CliRunner().invoke(app, ["media", "check", str(folder / "turned.jpg"), "--model", str(folder)])
        assert isinstance(done.exception, UnsupportedModelError)


def test_every_public_name_is_there_and_documented():
    page = PAGE.read_text("utf-8")
    for name in chiasm.media.__all__:
        assert getattr(chiasm.media, name).__name__ == name
        assert f"`{name}`" in page
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = chiasm.media.Nothing


def test_importing_the_room_loads_none_of_it():
    program = "import sys, chiasm.media; print([n for n in ('PIL', 'numpy', 'aiohttp') if n in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == "[]\n"


def test_the_pages_example_runs(tmp_path):
    section = PAGE.read_text("utf-8").partition("## Using it alone")[2]
    example = section.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.png").write_bytes(encode(gradient(20, 10), "png"))
    (tmp_path / "pictures" / "dog.jpg").write_bytes(encode(gradient(24, 16), "jpeg", exif=exif_block(6)))
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("png (20, 10) ")
    assert second.startswith("jpeg (16, 24) ")
