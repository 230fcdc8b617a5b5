"""The owner's side: starts decoder processes, hands each one picture at a time, kills and replaces those that fail."""

import logging
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from chiasm.errors import EngineError, MediaDecodeError, MediaError, TransferError, error_class
from chiasm.media.audio.header import AudioHeader
from chiasm.media.inspect import VideoFacts
from chiasm.media.isolation.blocks import LentBlocks
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
    num_array_bytes,
)
from chiasm.media.picture.header import Header
from chiasm.media.prepare.base import ImagePreparer, PreparedImage
from chiasm.media.prepare.items import plan_of
from chiasm.media.prepare.medium import Announced
from chiasm.media.video.sampling import SamplingRule
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import EmbeddingHandle, InlineSource, LateSource, MediaItem
from chiasm.settings import MediaSettings

logger = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 10.0
_BROKEN = (TimeoutError, EOFError, OSError, ValueError)
"""What a process does that must be replaced."""
_Reply = TypeVar("_Reply", Done, VideoFacts, AudioHeader, Header, Named)
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from chiasm.media.isolation.child import main; "
    "main(*map(int, sys.argv[1:3]))"
)


class DecoderProcess:
    """One process, started at once and in use by one thread at a time."""

    def __init__(self, settings: MediaSettings) -> None:
        """Start it. Raises `EngineError` when the system has no memory, descriptor or process left for it."""
        self._settings = settings
        self._is_ready = False
        self._lent: int | None = None
        try:
            self._start()
        except OSError as error:
            raise _not_started(f"A decoder process cannot be started: {error.strerror or error}") from error

    def _start(self) -> None:
        with closing(LentBlocks()) as self._blocks:
            ours, theirs = socket.socketpair()
            self._link = Link(ours)
            with theirs:
                try:
                    self._process = _started(theirs.fileno(), self._blocks.descriptor)
                except BaseException:
                    self._let_go()
                    raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def num_free_blocks(self) -> int:
        """Blocks of its memory that hold no array of a picture."""
        return self._blocks.num_free

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def hand_over(self, job: Job | Look | NamePixels, parts: Sequence[bytes]) -> None:
        """Wait until it has started, give it a picture and return when it has taken it.

        Raises:
            TimeoutError, EOFError, OSError, ValueError: It did not take the picture and must be replaced.
            EngineError: It takes too long to start, as another one would.
        """
        self._wait_ready()
        self._link.expire_in(self._settings.decode_timeout_s)
        if isinstance(job, Job):
            self._lent = self._blocks.take()
            job = replace(job, block=self._lent)
        self._link.send(job, parts)
        self._link.receive(Taken)

    def reply(self, kind: type[_Reply]) -> tuple[_Reply | Failed, list[NDArray[np.generic]]]:
        """Return what became of the picture that it took: a reply of this kind, or its failure.

        Raises `TimeoutError`, `EOFError`, `OSError` or `ValueError` when it must be replaced.
        """
        self._link.expire_in(self._settings.decode_timeout_s)
        reply: _Reply | Failed = self._link.receive(kind | Failed)  # type: ignore[arg-type]  # a union is no type to mypy
        if not isinstance(reply, Done):
            self._take_back()
            return reply, []
        if num_array_bytes(reply.arrays) > self._settings.max_decoder_bytes:
            raise ValueError("arrays beyond the memory that it has")
        placed = self._placed(reply.arrays)
        return reply, [
            self._link.receive_array(head) if array is None else array
            for head, array in zip(reply.arrays, placed, strict=True)
        ]

    def _placed(self, heads: Sequence[ArrayHead]) -> list[NDArray[np.generic] | None]:
        """Those that lie in the lent block, which is theirs from here on."""
        if all(head.offset is None for head in heads):
            self._take_back()
            return [None] * len(heads)
        if (number := self._lent) is None:
            raise ValueError("arrays in a block, and none was lent")
        self._lent = None
        return self._blocks.arrays(number, [(head.dtype, head.shape, head.offset) for head in heads])

    def _take_back(self) -> None:
        if self._lent is not None:
            self._blocks.give_back(self._lent)
            self._lent = None

    def _wait_ready(self) -> None:
        if self._is_ready:
            return
        self._link.expire_in(_START_TIMEOUT_S)
        try:
            self._link.send(self._settings)
            self._link.receive(Ready)
        except TimeoutError:
            raise _not_started(f"A decoder process did not start within {_START_TIMEOUT_S:g} s") from None
        self._is_ready = True

    def stop(self) -> int:
        """End it, whatever it is at. Returns its exit status, that of a signal negative."""
        self._process.kill()  # no-op when it has ended by itself
        self._let_go()
        return self._process.wait(_EXIT_TIMEOUT_S)

    def _let_go(self) -> None:
        self._link.close()
        self._blocks.unmap()


class ProcessPool:
    """As many processes as threads call it. All that takes data blocks, for at most the settings' time limit.

    The first `num_started` processes start at once, others when they are needed.
    """

    def __init__(self, settings: MediaSettings, num_started: int) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._is_closed = False
        self._idle = [DecoderProcess(settings) for _ in range(num_started)]
        self.num_replaced = 0

    @property
    def idle_pids(self) -> list[int]:
        """Numbers of the processes that wait for a picture."""
        with self._lock:
            return [process.pid for process in self._idle]

    def decode(
        self, item: MediaItem, preparer: ImagePreparer, clock: StageClock | None, index: int | None
    ) -> PreparedImage:
        """Decode and prepare a picture in one of the processes; it opens a spooled one itself.

        Raises:
            MediaError: The picture is refused, or its decoder crashed or took too long.
            TransferError: The spool does not have it.
            EngineError: No process could be started.
        """
        reply, arrays = self._answer(*_job(item, pickle.dumps(preparer)), Done)
        if clock is not None:
            clock.add("decode_media", reply.started - clock.start, reply.decoded - clock.start, index)
            clock.add("prepare", reply.decoded - clock.start, reply.prepared - clock.start, index)
        named = {head.name: array for head, array in zip(reply.arrays, arrays, strict=True)}
        return PreparedImage(plan_of(preparer, item), named)

    def look(self, data: bytes, rule: SamplingRule) -> VideoFacts:
        """Read a video's headers in one of the processes. Raises as `decode`, of these bytes."""
        return self._answer(Look("video", len(data), rule), (data,), VideoFacts)[0]

    def look_at_picture(self, data: bytes) -> Header:
        """Read a picture's header in one of the processes. Raises as `decode`, of these bytes."""
        return self._answer(Look("image", len(data)), (data,), Header)[0]

    def listen(self, data: bytes) -> AudioHeader:
        """Read the headers of a piece of audio in one of the processes. Raises as `decode`, of these bytes."""
        return self._answer(Look("audio", len(data)), (data,), AudioHeader)[0]

    def name(self, data: bytes) -> str:
        """Decode a picture in one of the processes and name its pixels. Raises as `decode`, of these bytes."""
        return self._answer(NamePixels(len(data)), (data,), Named)[0].identity

    def close(self) -> None:
        """End idle processes now and the others after what they are at."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.stop()

    def _answer(
        self, job: Job | Look | NamePixels, parts: Sequence[bytes], kind: type[_Reply]
    ) -> tuple[_Reply, list[NDArray[np.generic]]]:
        process = self._handed_over(job, parts)
        try:
            reply, arrays = process.reply(kind)
        except _BROKEN as error:
            raise self._replaced(process, error) from None
        self._give_back(process)
        if isinstance(reply, Failed):
            raise _rebuilt(reply)
        return reply, arrays

    def _handed_over(self, job: Job | Look | NamePixels, parts: Sequence[bytes]) -> DecoderProcess:
        """Return a process that has taken the picture.

        One that ended while idle may look alive for a moment, so only taking the picture proves that a process lives;
        one that does not take it gives way to the next. All idle ones may have ended, but not a new one, too.
        """
        for _ in range(self._settings.decode_threads + 1):
            process = self._take()
            try:
                process.hand_over(job, parts)
            except EngineError:
                process.stop()
                raise
            except _BROKEN as error:
                status = process.stop()
                logger.warning("A decoder process took no picture: %s, status %d", type(error).__name__, status)
                with self._lock:
                    self.num_replaced += 1
            else:
                return process
        raise _not_started("Decoder processes end before they take a picture")

    def _take(self) -> DecoderProcess:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive:
                    return process
                process.stop()  # it ended while it had nothing to do: no picture is to blame
                self.num_replaced += 1
        return DecoderProcess(self._settings)

    def _give_back(self, process: DecoderProcess) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(process)
                return
        process.stop()

    def _replaced(self, process: DecoderProcess, error: Exception) -> MediaDecodeError:
        """Kill the process, start another and say what happened."""
        status = process.stop()
        logger.warning("A decoder process is replaced: %s, status %d", type(error).__name__, status)
        with self._lock:
            self.num_replaced += 1
            if not self._is_closed:
                with suppress(EngineError):  # the next picture tries again, and says so
                    self._idle.append(DecoderProcess(self._settings))
        if isinstance(error, TimeoutError):
            return MediaDecodeError(f"Decoding took longer than {self._settings.decode_timeout_s:g} s")
        if isinstance(error, EOFError | OSError) and status < 0:
            return MediaDecodeError(f"The decoder crashed on this picture: {signal.strsignal(-status)}")
        return MediaDecodeError("The decoder gave no usable reply for this picture")


def _job(item: MediaItem, pickled_preparer: bytes) -> tuple[Job, tuple[bytes, bytes]]:
    source = item.source
    assert not isinstance(source, EmbeddingHandle | LateSource)
    data, spooled = (source.data, None) if isinstance(source, InlineSource) else (b"", source)
    job = Job(Announced(item.width, item.height, item.video), len(pickled_preparer), len(data), spooled)
    return job, (pickled_preparer, data)


def _started(*descriptors: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - our own interpreter with our own program
        [sys.executable, "-P", "-c", _PROGRAM, *map(str, descriptors), *sys.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl+C is for the server, which ends its decoders when it has drained
    )


def _not_started(message: str) -> EngineError:
    return EngineError(message, hint="Set media.decoder to 'threads'")


def _rebuilt(failed: Failed) -> MediaError | TransferError:
    cls = error_class(failed.code)
    return (cls if issubclass(cls, MediaError | TransferError) else MediaDecodeError)(failed.message, hint=failed.hint)
