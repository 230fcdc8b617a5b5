"""vLLM's way to media, closed but for the spool: an engine that uses it opens no user's URL, and decodes no video.

Chosen with `VLLM_MEDIA_CONNECTOR=chiasm`; the spool is the folder of `--allowed-local-media-path`. Videos come as the
frames that the gateway has chosen.
"""

import asyncio
from pathlib import Path
from typing import Any

import pybase64
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import MediaConnector, MediaIO, MediaWithBytes, VideoMediaIO
from vllm.multimodal.media.connector import global_thread_pool

from chiasm.engines.vllm.spool_url import read_spool_url
from chiasm.errors import ChiasmError, MediaRefusedError
from chiasm.media.video.packed import unpack_video


class SpoolMediaConnector(MediaConnector):  # type: ignore[misc]
    """Takes data URLs, and what the gateway has spooled; everything else is refused before anything is opened."""

    def __init__(self, *args: Any, allowed_local_media_path: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # without the path: nothing of ours opens files by it
        self._spool = Path(allowed_local_media_path).resolve() if allowed_local_media_path else None

    def load_from_url(self, url: str, media_io: MediaIO[Any], *, fetch_timeout: int | None = None) -> Any:
        """Load a medium. Raises vLLM's error for 422 when it is not there, or not to be opened."""
        if isinstance(media_io, VideoMediaIO):
            media_io = _Frames()
        if url[:5].lower() == "data:":
            return self._load_data_url(url, media_io)
        try:
            if self._spool is None:
                raise MediaRefusedError("This engine opens no URLs and has no spool")
            data = read_spool_url(url, self._spool)
        except ChiasmError as error:
            raise VLLMUnprocessableEntityError(f"{error.message} ({error.code})", parameter="url") from None
        return media_io.load_bytes(data)

    async def load_from_url_async(self, url: str, media_io: MediaIO[Any], *, fetch_timeout: int | None = None) -> Any:
        """Load a medium on vLLM's threads for media."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(global_thread_pool, self.load_from_url, url, media_io)


class _Frames(MediaIO[Any]):  # type: ignore[misc]
    """A video as the gateway packs it: these frames, at these times, and nothing to be sampled."""

    def load_bytes(self, data: bytes) -> Any:
        try:
            video = unpack_video(data)
        except ChiasmError as error:
            raise VLLMUnprocessableEntityError(f"{error.message} ({error.code})", parameter="video_url") from None
        sample = video.sample
        metadata = {
            "total_num_frames": sample.num_frames,
            "fps": sample.fps,
            "duration": sample.num_frames / sample.fps,
            "frames_indices": list(sample.indices),
            "video_backend": "chiasm",
            "do_sample_frames": False,
            "height": video.frames.shape[1],
            "width": video.frames.shape[2],
        }
        return MediaWithBytes((video.frames, metadata), data)

    def load_base64(self, media_type: str, data: str) -> Any:
        return self.load_bytes(pybase64.b64decode(data, validate=True))

    def load_file(self, filepath: Path) -> Any:
        raise VLLMUnprocessableEntityError(
            f"Files are read by name, from the spool alone ({MediaRefusedError.code})", parameter="video_url"
        )
