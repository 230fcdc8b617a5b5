"""The decoder process: takes pictures one after the other until its owner closes the socket."""

import pickle
import resource
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chiasm.errors import MediaDecodeError, MediaError, MediaTooLargeError, TransferError
from chiasm.media.audio.header import AudioHeader
from chiasm.media.identity import pixel_identity
from chiasm.media.inspect import VideoFacts, read_audio_facts, read_video_facts
from chiasm.media.isolation.blocks import BorrowedBlocks
from chiasm.media.isolation.wire import (
    ArrayHead,
    Done,
    Failed,
    Job,
    Link,
    Look,
    Named,
    NamePixels,
    Ready,
    Taken,
    bytes_of,
)
from chiasm.media.picture.header import Header, read_header
from chiasm.media.prepare.medium import prepare_medium
from chiasm.media.prepare.output import outputs_in
from chiasm.media.sources import read_source
from chiasm.settings import MediaSettings
from chiasm.settings.niceness import process_steps_back

if TYPE_CHECKING:
    from chiasm.media.prepare.base import ImagePreparer

Facts = VideoFacts | AudioHeader | Header
_GRACE_S = 1.0
_MAX_TEXT_CHARS = 500


def main(descriptor: int, blocks: int) -> None:
    """Serve the owner at the other end of an inherited socket until it closes that. `blocks` is inherited memory."""
    with suppress(EOFError, ConnectionError):
        mapped = BorrowedBlocks(blocks)  # before the limit is set, which is on top of what there is
        _serve(Link(socket.socket(fileno=descriptor)), mapped)


def _serve(link: Link, blocks: BorrowedBlocks) -> None:
    settings = link.receive(MediaSettings)
    _limit_memory(settings.max_decoder_bytes)
    process_steps_back(settings.niceness)
    link.send(Ready())
    decoder = _Decoder(settings, blocks)
    while True:
        job = link.receive(Job | Look | NamePixels)  # type: ignore[arg-type]  # a union is no type to mypy
        preparer = link.receive_bytes(job.num_preparer_bytes if isinstance(job, Job) else 0)
        data = link.receive_bytes(job.num_data_bytes)
        # The owner kills a process that is late. Should the owner be gone, the alarm does: its default action works
        # also where a library holds the interpreter.
        signal.setitimer(signal.ITIMER_REAL, settings.decode_timeout_s + _GRACE_S)
        link.send(Taken())
        head, arrays = decoder.reply(job, preparer, data)
        signal.setitimer(signal.ITIMER_REAL, 0)
        link.send(head, [bytes_of(array) for array in arrays])


def _limit_memory(max_bytes: int) -> None:
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = num_pages * resource.getpagesize() + max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash dump would hold the caller's picture


class _Decoder:
    def __init__(self, settings: MediaSettings, blocks: BorrowedBlocks) -> None:
        self._settings = settings
        self._blocks = blocks
        self._pickled = b""
        self._preparer: ImagePreparer | None = None

    def reply(
        self, job: Job | Look | NamePixels, pickled: bytearray, data: bytearray
    ) -> tuple[Done | Facts | Named | Failed, list[NDArray[np.generic]]]:
        try:
            if isinstance(job, Look):
                return self._facts(job, bytes(data)), []
            if isinstance(job, NamePixels):
                return Named(pixel_identity(bytes(data), self._settings)), []
            return self._done(job, bytes(pickled), bytes(data))
        except (MediaError, TransferError) as error:
            return _failed(error), []
        except MemoryError:
            limit = self._settings.max_decoder_bytes
            return _failed(MediaTooLargeError(f"Decoding takes more memory than the limit of {limit} bytes")), []
        except Exception as error:  # noqa: BLE001 - the border: whatever happens here is one failed picture
            return _failed(MediaDecodeError(f"The decoder failed on this picture: {type(error).__name__}")), []

    def _facts(self, look: Look, data: bytes) -> "Facts":
        if look.kind == "image":
            return read_header(data)
        if look.kind == "audio":
            return read_audio_facts(data, self._settings)
        return read_video_facts(data, look.rule, self._settings)

    def _done(self, job: Job, pickled: bytes, data: bytes) -> tuple[Done, list[NDArray[np.generic]]]:
        if self._preparer is None or pickled != self._pickled:
            self._pickled, self._preparer = pickled, pickle.loads(pickled)  # noqa: S301 - it comes from our owner
        assert self._preparer is not None
        if job.spooled is not None:
            data = read_source(job.spooled, self._settings)
        self._blocks.use(job.block)
        with outputs_in(self._blocks.place):
            timed = prepare_medium(data, job.announced, self._preparer, self._settings)
        heads, arrays = [], []
        for name, made in timed.prepared.arrays.items():
            array = np.asarray(made, order="C")
            heads.append(ArrayHead(name, array.dtype.str, array.shape, self._blocks.offset(array)))
            if heads[-1].offset is None:
                arrays.append(array)
        return Done(timed.started, timed.decoded, timed.ended, tuple(heads)), arrays


def _failed(error: MediaError | TransferError) -> Failed:
    return Failed(error.code, error.message[:_MAX_TEXT_CHARS], error.hint and error.hint[:_MAX_TEXT_CHARS])
