"""Videos of a load: as long and as large as asked for, and new to every cache."""

import base64
import io
import json

import pytest

from chiasm.bench.workload.bodies import BodyMaker, Dialect
from chiasm.bench.workload.classes import RequestClass, checked
from chiasm.bench.workload.videos import VideoSource, film
from chiasm.errors import InvalidSettingError

av = pytest.importorskip("av", reason="the extra 'video' is not installed")
KIND = RequestClass(videos=2, video_width=65, video_height=48, video_seconds=0.5, text_tokens=4)


def test_a_film_has_the_size_and_length_that_were_asked_for():
    with av.open(io.BytesIO(film("a", KIND.video_size, 0.5))) as file:
        frames = list(file.decode(video=0))
    assert (frames[0].width, frames[0].height, len(frames)) == (64, 48, 12)


def test_files_are_new_for_every_request_and_the_same_for_a_seed():
    one, again, other = VideoSource(KIND, "a"), VideoSource(KIND, "a"), VideoSource(KIND, "b")
    made = [one.next(), one.next()]
    assert made == [again.next(), again.next()]
    assert len({*made, other.next()}) == 3
    with av.open(io.BytesIO(made[1])) as file:  # what makes it new is skipped by readers
        assert len(list(file.decode(video=0))) == 12


def test_a_body_carries_them():
    body = json.loads(BodyMaker((KIND,), Dialect(model="m"), "0").make(KIND, 0))
    *videos, text = body["messages"][0]["content"]
    assert [part["type"] for part in videos] == ["video_url"] * 2
    assert base64.b64decode(videos[0]["video_url"]["url"].partition(",")[2])[4:8] == b"ftyp"
    assert text["type"] == "text"


def test_only_chats_carry_them():
    with pytest.raises(InvalidSettingError, match="pictures or videos"):
        checked([RequestClass(kind="embeddings", videos=1)])
