"""Small pieces of audio, made and encoded here: a tone in each channel, louder in the first."""

import io
import wave

import av
import numpy as np

CODECS = {"flac": "flac", "ogg": "libopus", "mp3": "libmp3lame"}
VORBIS_BLOCK = 1024


def tone(hertz=440.0, *, rate=16_000, seconds=1.0, amplitude=0.5):
    times = np.arange(round(rate * seconds)) / rate
    return (amplitude * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


def wav(channels, rate=16_000, num_bytes=2):
    """WAVE of whole numbers, [channels, samples] between -1 and 1."""
    channels, out = np.atleast_2d(channels), io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(num_bytes)
        file.setframerate(rate)
        whole = np.round(channels.T.astype(np.float64) * (2 ** (8 * num_bytes - 1) - 1)).astype("<i8")
        if num_bytes == 1:
            whole += 128
        file.writeframes(whole.reshape(-1, 1).view(np.uint8)[:, :num_bytes].tobytes())
    return out.getvalue()


def sound(kind, samples, rate=16_000, codec=None):
    """One channel, encoded as one of `CODECS` or another codec."""
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as file:
        stream = file.add_stream(codec or CODECS[kind], rate=rate)
        stream.layout = "mono"
        fifo = av.AudioFifo()
        frame = av.AudioFrame.from_ndarray((samples[None] * 32767).astype(np.int16), format="s16", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate)
        for converted in [*resampler.resample(frame), *resampler.resample(None)]:
            fifo.write(converted)
        size = stream.codec_context.frame_size or 4096
        at = 0
        while piece := fifo.read(size, partial=True):
            piece.pts, at = at, at + piece.samples
            file.mux(stream.encode(piece))
        file.mux(stream.encode())
    return out.getvalue()


def vorbis(samples, rate):
    """Ogg Vorbis of two equal channels, whole blocks of it: what the library's own encoder takes."""
    out, both = io.BytesIO(), np.stack([samples, samples])
    with av.open(out, "w", format="ogg") as file:
        stream = file.add_stream("vorbis", rate=rate, options={"strict": "experimental"})
        stream.layout = "stereo"
        for at in range(0, both.shape[1] - VORBIS_BLOCK + 1, VORBIS_BLOCK):
            block = np.ascontiguousarray(both[:, at : at + VORBIS_BLOCK])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = rate, at
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return out.getvalue()
