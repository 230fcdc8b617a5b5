import hashlib

from chiasm.gateway.media_keys import MediaKeys
from chiasm.protocol.media import InlineSource, MediaItem, VideoSample


def item(content, **fields):
    identity = hashlib.sha256(content).hexdigest()
    return MediaItem(identity=identity, format="png", width=20, height=10, source=InlineSource(data=content), **fields)


def test_the_same_content_has_the_same_key_in_one_process_and_another_in_the_next():
    keys = MediaKeys()
    first, again, other = keys.sizes([item(b"a"), item(b"a"), item(b"b")])
    assert first == again
    assert first.key != other.key
    assert MediaKeys().sizes([item(b"a")])[0].key != first.key
    assert first.key not in item(b"a").identity


def test_frames_of_a_video_count():
    video = VideoSample(num_frames=30, fps=10.0, indices=(0, 10, 20))
    assert MediaKeys().sizes([item(b"v", kind="video", video=video)])[0].num_pixels == 600
