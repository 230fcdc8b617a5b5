"""Audio: facts from packets, samples at the right rate, pitch, loudness and length, refusals with flat memory."""

import struct
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("av", reason="the extra video is not installed")

from chiasm.errors import MediaDecodeError, MediaError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media import MediaIngest, MediaReference, MediaSettings, content_identity
from chiasm.media.audio.container import sniff_audio
from chiasm.media.audio.decode import decode_audio, resampled
from chiasm.media.audio.header import read_audio_header
from tests.unit.media.audio.sounds import sound, tone, vorbis, wav
from tests.unit.media.pictures import data_url

SETTINGS = MediaSettings()
EDGE = 400
"""Samples at either end, where a filter or a codec has no past or no future."""
ENCODED = {
    "wav": lambda: wav(tone()),
    "flac": lambda: sound("flac", tone()),
    "mp3": lambda: sound("mp3", tone()),
    "ogg opus": lambda: sound("ogg", tone(rate=48_000), 48_000),
    "ogg vorbis": lambda: vorbis(tone(rate=48_000, seconds=1.02), 48_000),
    "ogg flac": lambda: sound("ogg", tone(), codec="flac"),
}
NOISE = {"wav": 4e-5, "flac": 6e-5, "mp3": 0.04, "ogg opus": 0.05, "ogg vorbis": 0.02, "ogg flac": 6e-5}


@pytest.mark.parametrize("name", ENCODED)
def test_each_format_gives_the_tone_back(name):
    data = ENCODED[name]()
    header = read_audio_header(data, SETTINGS)
    kind, _, codec = name.partition(" ")
    assert sniff_audio(data[:32]) == header.container == kind
    assert header.codec.endswith(codec)
    assert header.duration_s == pytest.approx(1.0, abs=0.1)
    found = decode_audio(data, 16_000, SETTINGS)
    assert found.dtype == np.float32
    assert len(found) == pytest.approx(16_000, abs=330)
    middle = slice(EDGE, 15_000)
    assert np.abs(found[middle] - tone()[middle]).max() < NOISE[name]


@pytest.mark.parametrize(("num_bytes", "codec"), [(1, "pcm_u8"), (2, "pcm_s16le"), (3, "pcm_s24le"), (4, "pcm_s32le")])
def test_whole_numbers_of_any_width_have_one_full_scale(num_bytes, codec):
    data = wav([tone(amplitude=1.0)], num_bytes=num_bytes)
    assert read_audio_header(data, SETTINGS).codec == codec
    assert (
        np.abs(decode_audio(data, 16_000, SETTINGS) - tone(amplitude=1.0)).max()
        < 1.5 * 2.0 ** (1 - 8 * num_bytes) + 2e-7
    )


def test_channels_become_their_mean():
    left, right = tone(440), tone(1000, amplitude=0.25)
    found = decode_audio(wav([left, right]), 16_000, SETTINGS)
    assert np.abs(found - (left + right) / 2).max() < 4e-5


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("wanted", [16_000, 24_000])
@pytest.mark.parametrize("share", [0.05, 0.4])
def test_a_tone_keeps_pitch_loudness_phase_and_length(rate, wanted, share):
    hertz = share * min(rate, wanted)
    found = resampled([tone(hertz, rate=rate, seconds=1.5)], rate, wanted)
    ideal = tone(hertz, rate=wanted, seconds=1.5)
    assert len(found) == len(ideal)
    assert np.abs(found - ideal)[EDGE:-EDGE].max() < 3e-5


def test_what_the_lower_rate_cannot_hold_is_gone_and_does_not_come_back_elsewhere():
    found = resampled([tone(10_000, rate=48_000)], 48_000, 16_000)
    assert np.abs(found[EDGE:-EDGE]).max() < 1e-5


@pytest.mark.parametrize(
    ("num_samples", "rate", "wanted"), [(1, 44_100, 16_000), (7, 48_000, 16_000), (3, 8000, 48_000)]
)
def test_a_few_samples_have_the_right_length(num_samples, rate, wanted):
    assert len(resampled([np.ones(num_samples, np.float32)], rate, wanted)) == -(-num_samples * wanted // rate)


def test_how_the_samples_are_cut_into_pieces_does_not_matter():
    whole = tone(440, rate=48_000, seconds=3)
    pieces = np.split(whole, [1, 2, 1000, 1001, 70_000, 143_999])
    assert np.array_equal(resampled(pieces, 48_000, 16_000), resampled([whole], 48_000, 16_000))
    assert np.array_equal(resampled(pieces, 16_000, 16_000), whole)


def test_a_high_rate_is_never_there_as_a_whole():
    num_pieces, num_samples = 200, 65_536
    tracemalloc.start()
    try:
        found = resampled((np.zeros(num_samples, np.float32) for _ in range(num_pieces)), 384_000, 16_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == -(-num_pieces * num_samples * 16_000 // 384_000)
    assert peak_bytes < num_pieces * num_samples * 4 / 5


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        ({"max_audio_s": 0.5}, "longer than the limit of 0.5 s"),
        ({"max_audio_channels": 1}, "2 channels; the limit is 1"),
    ],
)
def test_limits(limits, cause):
    with pytest.raises(MediaTooLargeError, match=cause):
        read_audio_header(wav([tone(), tone()]), MediaSettings(**limits))


def test_the_limit_holds_while_decoding_whatever_headers_say(monkeypatch):
    header = read_audio_header(wav(tone(seconds=3)), SETTINGS)
    monkeypatch.setattr("chiasm.media.audio.decode.read_audio_header", lambda *_: header)
    with pytest.raises(MediaTooLargeError, match="longer than the limit of 2 s"):
        decode_audio(wav(tone(seconds=3)), 16_000, MediaSettings(max_audio_s=2))


def test_samples_that_are_no_numbers_are_refused():
    body = np.array([0, np.nan, np.inf, 0.5], "<f4").tobytes()
    data = (
        b"RIFF"
        + struct.pack("<I", 36 + len(body))
        + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 3, 1, 16_000, 64_000, 4, 32)
    )
    with pytest.raises(MediaDecodeError, match="no numbers"):
        decode_audio(data + b"data" + struct.pack("<I", len(body)) + body, 16_000, SETTINGS)


def test_a_codec_that_is_not_taken_is_named():
    data = sound("wav", tone(), codec="adpcm_ima_wav")
    with pytest.raises(UnsupportedMediaError, match="coded as adpcm_ima_wav"):
        read_audio_header(data, SETTINGS)


def test_a_piece_without_its_end_is_refused():
    data = sound("flac", tone(seconds=3))
    with pytest.raises(MediaDecodeError, match="cut off"):
        read_audio_header(data[: len(data) // 2], SETTINGS)


async def collected(ingest, url):
    try:
        return await ingest.listen(MediaReference("audio", url, "/0"), 60)
    finally:
        await ingest.aclose()


@pytest.mark.parametrize("decoder", ["threads", "processes"])
async def test_ingest_listens_by_the_same_rules(decoder):
    data = wav(tone())
    item = await collected(MediaIngest(MediaSettings(decoder=decoder), None), data_url(data, "audio/wav"))
    assert (item.identity, item.data, item.header.rate) == (content_identity(data), data, 16_000)
    with pytest.raises(MediaError) as caught:
        await collected(
            MediaIngest(MediaSettings(decoder=decoder), None), data_url(b"no sound at all" * 9, "audio/wav")
        )
    assert (caught.value.code, caught.value.item, caught.value.param) == ("media_unsupported", 0, "/0")


async def test_the_library_is_not_used_in_this_process_where_there_are_others(monkeypatch):
    def refused(*_):
        raise AssertionError("audio was opened in this process")

    monkeypatch.setattr("chiasm.media.inspect.read_audio_header", refused)
    url = data_url(wav(tone()), "audio/wav")
    assert (await collected(MediaIngest(MediaSettings(decoder="processes"), None), url)).header.num_channels == 1
    with pytest.raises(AssertionError):
        await collected(MediaIngest(SETTINGS, None), url)


async def test_no_model_takes_audio_and_nothing_is_fetched_for_the_refusal():
    ingest = MediaIngest(SETTINGS, None)
    with pytest.raises(UnsupportedMediaError, match="Media item 0: This model takes no audio") as caught:
        await ingest.collect([MediaReference("audio", "https://img.example/a.wav", "/0")], 60)
    assert caught.value.param == "/0"
    await ingest.aclose()
