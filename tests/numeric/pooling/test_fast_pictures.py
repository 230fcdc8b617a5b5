"""Pictures prepared fast: embeddings and scores move a little, never unasked, and by an amount that can be measured."""

import io
import json
from hashlib import sha256

import numpy as np
import pytest
from PIL import Image, ImageFilter
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.pooling.work import ImageInput
from tests.numeric.pooling.models import build_clip, build_image_ranker
from tests.numeric.pooling.pictures import picture, png
from tests.numeric.pooling.served import served

SIZE = (900, 600)


@pytest.fixture(scope="module")
def jpeg():
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE[::-1], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(6)).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_clip(tmp_path_factory.mktemp("clip") / "m")


def inputs(jpeg):
    item = MediaItem(
        identity=sha256(jpeg).hexdigest(), format="jpeg", width=SIZE[0], height=SIZE[1], source=InlineSource(jpeg)
    )
    return [ImageInput(item), picture(png(90, 30), (90, 30))]


def test_a_large_jpeg_moves_a_little_and_nothing_else_does(directory, jpeg):
    with served(directory) as worker:
        exact, revision = worker.values("embed", inputs(jpeg)), worker.worker.info.processor_revision
    with served(directory, media__preparation="fast") as worker:
        fast = worker.values("embed", inputs(jpeg))
        assert worker.worker.info.processor_revision != revision, "one must not pass for the other in a cache"
    assert 0 < np.abs(exact[0] - fast[0]).max() < 0.05
    assert (exact[1] == fast[1]).all()


def told(*arguments):
    result = CliRunner().invoke(app, ["media", "parity", *map(str, arguments), "--set", "engine.threads=1"])
    return result.exit_code, result.output


def test_the_command_says_how_far_scores_move(directory, jpeg, tmp_path):
    file = tmp_path / "a.jpg"
    file.write_bytes(jpeg)
    code, output = told(file, "--model", directory, "--ask", "a dog", "--json")
    assert code == 0, output
    [row] = json.loads(output)["scores"]
    assert 0.99 < row["cosine"] < 1
    assert 0 < abs(row["exact_score"] - row["fast_score"]) < 0.05
    other = tmp_path / "b.png"
    other.write_bytes(png(90, 30))
    code, output = told(file, other, "--model", directory, "--ask", "a dog")
    assert code == 0, output
    assert "all 2 pictures: cosine at least 0.99" in output
    assert "scores move by at most" in output
    assert "of pairs in the same order" in output
    code, output = told(file, "--model", directory)
    assert "cosine of the two embeddings 0.99" in output
    assert "score" not in output


def test_a_model_that_only_scores_needs_a_text(jpeg, tmp_path):
    file, model = tmp_path / "a.jpg", build_image_ranker(tmp_path / "m")
    file.write_bytes(jpeg)
    code, output = told(file, "--model", model, "--ask", "a chair")
    assert code == 0, output
    assert "score 0." in output
    assert told(file, "--model", model)[0] != 0
