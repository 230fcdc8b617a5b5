"""Videos for vLLM: frames that are decoded here, limits before anything is sent, and handles that are looked at."""

import asyncio
import base64
import json

import msgspec
import pytest

pytest.importorskip("av", reason="the extra video is not installed")

from chiasm.errors import (
    DeadlineExceededError,
    LayoutMismatchError,
    MediaDecodeError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from chiasm.media.decoding import PictureDecoder
from chiasm.media.prepare.qwen_video import QwenVideoPreparer
from chiasm.media.spool import Spool
from chiasm.media.video.packed import unpack_video
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import InlineSource, SpoolSource, VideoSample
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.vllm.handles import handles_of
from chiasm.routing.vllm.requests import CallWriter
from chiasm.routing.vllm.versions.v0_32 import Version032
from chiasm.routing.vllm.videos import VideoFrames, check_encodable, with_frames
from chiasm.settings import MediaSettings
from tests.unit.media.video.clips import clip
from tests.unit.routing.vllm.served import Patches, chat, model, picture

VERSION = Version032()
INDICES = (0, 15, 31, 47)
SAMPLE = VideoSample(num_frames=48, fps=24.0, indices=INDICES)


class Moving(Patches):
    """Of a model that takes videos, too."""

    video = QwenVideoPreparer({"size": {"shortest_edge": 32 * 32, "longest_edge": 2**20}}, is_qwen3=True)


@pytest.fixture(scope="module")
def data():
    return clip(48)


def shown(data, **fields):
    known = {"kind": "video", "format": "mp4", "width": 96, "height": 64, "video": SAMPLE}
    return msgspec.structs.replace(picture("clip", source=InlineSource(data)), **(known | fields))


def given(items, *, spool=None, timeout_s=30.0, look=lambda items: items):
    """What becomes of the items, seen while a call would last, and the spans."""

    async def run():
        videos, clock = VideoFrames(PictureDecoder(MediaSettings()), Moving(), spool), StageClock()
        try:
            async with videos.given(items, timeout_s, clock) as found:
                return look(found), clock.spans
        finally:
            videos.close()

    return asyncio.run(run())


def test_a_call_has_the_chosen_frames_in_place_of_a_video_and_pictures_as_they_are(data):
    first = picture("red")
    (found, again, last), spans = given((first, shown(data), shown(data)))
    assert found is first
    assert again == last
    packed = unpack_video(again.source.data)
    assert packed.sample == SAMPLE
    assert packed.frames.shape[0] == len(INDICES)
    assert [(span.stage, span.item) for span in spans] == [("decode_media", 1), ("prepare", 1)], "once"
    call = CallWriter(model(preparer=Moving()), "served", VERSION, None)
    parts = json.loads(call.generate(chat(0, items=(again,))).body)["messages"][0]["content"]
    kind, payload = parts[0]["video_url"]["url"].split(",")
    assert (parts[0]["type"], kind) == ("video_url", "data:video/x-chiasm-frames;base64")
    assert base64.b64decode(payload) == again.source.data


def test_frames_lie_in_the_spool_for_as_long_as_the_call_lasts(data, tmp_path):
    spool = Spool(MediaSettings(spool_directory=str(tmp_path)))
    try:

        def look(items):
            assert isinstance(items[0].source, SpoolSource)
            assert spool.num_files == 1
            return unpack_video((tmp_path / items[0].source.name).read_bytes())

        packed, _ = given((shown(data),), spool=spool, look=look)
        assert packed.sample == SAMPLE
        assert spool.num_files == 0
    finally:
        spool.close()


def test_what_is_wrong_with_a_video_is_said_with_its_item_and_within_the_deadline(data):
    with pytest.raises(MediaDecodeError, match="Media item 1") as caught:
        given((picture(), shown(data[:200])))
    assert caught.value.item == 1
    with pytest.raises(DeadlineExceededError):
        given((shown(data),), timeout_s=0.0)


def test_a_server_that_is_not_known_to_take_frames_gets_none(data):
    async def run(items):
        async with with_frames(chat("x", items=items), None, "far") as (sent, _):
            return sent

    assert asyncio.run(run((picture(),))).items == (picture(),)
    with pytest.raises(UnsupportedMediaError, match="'far'") as caught:
        asyncio.run(run((picture(), shown(data))))
    assert caught.value.item == 1
    assert "videos = true" in caught.value.hint


def test_a_video_takes_no_more_than_servers_reserved_for_a_picture(data):
    served = model(preparer=Moving(), max_picture_embeddings=12)
    assert served.plan(shown(data)).num_embeddings == 12
    more = msgspec.structs.replace(SAMPLE, indices=(0, 9, 18, 27, 36, 47))
    with pytest.raises(MediaTooLargeError, match="18 embeddings; there is room for 12") as caught:
        served.plan(shown(data, video=more))
    assert "num_frames" in caught.value.hint
    assert model(preparer=Moving()).plan(shown(data, video=more)).num_embeddings == 18


def described(identity, **metadata):
    known = {"video_grid_thw": [2, 4, 6], "timestamps": [0.3125, 1.625]}
    entry = {"item_indices": [0], "metadata": known | metadata}
    return VERSION.described(json.dumps({"ec_transfer_params": {identity: entry}}).encode())


def test_an_encoded_video_is_named_by_its_grid_and_the_times_of_its_frames(data):
    served, item = model(preparer=Moving()), shown(data)
    request = EncodeRequest(request_id="e", items=(item,))
    (handle,) = handles_of(described(item.identity), request, served, 60.0)
    assert (handle.metadata.kind, handle.metadata.grid_thw) == ("video", (2, 4, 6))
    sent = msgspec.structs.replace(item, source=handle)
    body = json.loads(CallWriter(served, "served", VERSION, None).generate(chat(0, items=(sent,))).body)
    assert body["messages"][0]["content"] == [
        {
            "type": "video_embeds",
            "video_embeds": {"video_grid_thw": [2, 4, 6], "timestamps": [0.3125, 1.625]},
            "uuid": item.identity,
        }
    ]
    assert body["ec_transfer_params"][item.identity]["item_indices"] == [0]


@pytest.mark.parametrize(
    "metadata",
    [
        {"video_grid_thw": [2, 4, 8]},
        {"video_grid_thw": [1, 4, 6]},
        {"timestamps": [0.3125, 1.75]},
        {"timestamps": [0.3125]},
    ],
)
def test_what_an_encoder_says_of_other_frames_is_not_believed(data, metadata):
    item = shown(data)
    with pytest.raises(LayoutMismatchError):
        handles_of(
            described(item.identity, **metadata),
            EncodeRequest(request_id="e", items=(item,)),
            model(preparer=Moving()),
            60.0,
        )


def test_videos_whose_times_would_get_lost_on_the_way_are_not_encoded_for_others(data):
    config = {"model_type": "qwen2_5_vl", "text_config": {"hidden_size": 8}}
    check_encodable(shown(data), model(preparer=Moving()), VERSION)
    check_encodable(picture(), model(preparer=Moving(), config=config), VERSION)
    with pytest.raises(UnsupportedMediaError, match="times") as caught:
        check_encodable(shown(data), model(preparer=Moving(), config=config), VERSION)
    assert "agg" in caught.value.hint
