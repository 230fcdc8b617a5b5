"""`chiasm media parity` says by how much the fast preparation is off."""

import json

import numpy as np
import pytest
from PIL import Image, ImageFilter
from typer.testing import CliRunner

from chiasm.cli.media import media


@pytest.fixture
def files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), np.uint8)
    photo = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(6))
    photo.save(tmp_path / "photo.jpg", quality=90)
    photo.resize((200, 150)).save(tmp_path / "small.png")
    return [str(tmp_path / "photo.jpg"), str(tmp_path / "small.png")]


def test_errors_and_times_are_printed(files):
    result = CliRunner().invoke(media, ["parity", *files])
    assert result.exit_code == 0, result.output
    photo, small = result.stdout.splitlines()
    assert "photo.jpg: jpeg 2000x1500 to " in photo
    assert " dB, at most " in photo
    assert "small.png: png 200x150 to " in small
    assert ": equal; " in small


def test_json_holds_the_same(files):
    result = CliRunner().invoke(media, ["parity", *files, "--json"])
    found = json.loads(result.stdout)
    photo, small = found["pictures"]
    assert photo["psnr_db"] > 40
    assert small["psnr_db"] is None
    assert found["answers"] == []
