"""What media may come in, and what becomes of them."""

from typing import Annotated, Literal

from msgspec import Meta

from chiasm.settings.base import Section


class MediaSettings(Section, frozen=True, kw_only=True):
    """What media may come in, from where, and how large."""

    allowed_domains: Annotated[
        tuple[str, ...],
        Meta(description="Hosts that URLs may name ('.example.org' allows its subdomains); none: no URL."),
    ] = ()
    allow_http: Annotated[bool, Meta(description="Allow http:// besides https:// for allowed domains.")] = False
    allowed_private_hosts: Annotated[
        tuple[str, ...], Meta(description="Allowed domains that may resolve to private or loopback addresses.")
    ] = ()
    allowed_ports: Annotated[tuple[int, ...], Meta(description="Ports that URLs may name.")] = (80, 443)
    allowed_root: Annotated[
        str | None, Meta(description="Folder below which file:// URLs are read; none: refused.")
    ] = None
    fetch_timeout_s: Annotated[float, Meta(gt=0, description="Total time to fetch one item.")] = 10.0
    proxy: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s/?#]+/?)?$",
            description="Proxy that downloads go through: 'http://user:password@host:port', or https. Empty: none, "
            "whatever the environment says. Never printed.",
        ),
    ] = ""
    max_redirects: Annotated[
        int, Meta(ge=0, le=20, description="Redirects followed for one item, each judged like a URL of its own.")
    ] = 0
    max_fetches: Annotated[int, Meta(ge=1, description="Downloads under way at once.")] = 32
    max_fetches_per_host: Annotated[
        int, Meta(ge=1, description="Of these, from one host and port, so that a slow one leaves room for others.")
    ] = 16
    fetch_cache: Annotated[
        Literal["off", "revalidate", "immutable"],
        Meta(
            description="Keep downloads with a strong ETag for the same tenant: never; asking each time whether they "
            "have changed; or not asking while they are immutable and within their max-age."
        ),
    ] = "off"
    fetch_cache_bytes: Annotated[int, Meta(ge=1, description="Downloads kept at once.")] = 128 * 2**20
    fetch_cache_entries: Annotated[int, Meta(ge=1, description="Downloads kept at once, whatever their size.")] = 1024
    fetch_cache_ttl_s: Annotated[float, Meta(gt=0, description="Time after which a kept download goes.")] = 3600.0
    max_items: Annotated[int, Meta(ge=1, description="Media items in one request.")] = 16
    max_item_bytes: Annotated[int, Meta(ge=1, description="Encoded bytes of one item.")] = 20 * 2**20
    max_request_bytes: Annotated[int, Meta(ge=1, description="Encoded bytes of all items of a request.")] = 48 * 2**20
    max_item_pixels: Annotated[int, Meta(ge=1, description="Width x height of one item, from its header.")] = 40_000_000
    max_request_pixels: Annotated[int, Meta(ge=1, description="Pixels of all items of a request.")] = 120_000_000
    max_video_frames: Annotated[int, Meta(ge=1, description="Frames that a video may have, sampled or not.")] = 36_000
    max_video_s: Annotated[float, Meta(gt=0, description="Length of a video.")] = 1200.0
    video_threads: Annotated[
        int, Meta(ge=1, le=64, description="Threads that one video is decoded by, where it has keyframes for them.")
    ] = 1
    max_audio_s: Annotated[float, Meta(gt=0, description="Length of a piece of audio.")] = 1200.0
    max_audio_channels: Annotated[int, Meta(ge=1, le=64, description="Channels of a piece of audio.")] = 8
    max_aspect_ratio: Annotated[float, Meta(ge=1, description="Longer side over shorter side.")] = 200.0
    max_visual_tokens: Annotated[int, Meta(ge=1, description="Visual tokens of all items of a request.")] = 16_384
    max_item_tiles: Annotated[
        int, Meta(ge=1, description="Tiles that a model cuts one picture into, the overview not counted.")
    ] = 144
    max_request_tiles: Annotated[int, Meta(ge=1, description="Tiles of all pictures of a request.")] = 576
    background: Annotated[
        tuple[int, int, int], Meta(description="RGB colour that transparent pixels are composited on.")
    ] = (255, 255, 255)
    animated: Annotated[
        Literal["first_frame", "refuse"], Meta(description="What to do with animated GIF, WebP and PNG.")
    ] = "first_frame"
    identity: Annotated[
        Literal["bytes", "pixels"],
        Meta(
            description="What names a picture in caches: its encoded bytes, or its decoded pixels, which takes longer."
        ),
    ] = "bytes"
    preparation: Annotated[
        Literal["exact", "fast"],
        Meta(description="Pixels as the model's own processor makes them, or JPEG decoded at a reduced size first."),
    ] = "exact"
    decode_threads: Annotated[
        int, Meta(ge=1, description="Pictures decoded and prepared at once: threads, or decoder processes.")
    ] = 2
    decoder: Annotated[
        Literal["threads", "processes"],
        Meta(description="Decode in this process, or in others that may crash, hang or swell without harm to it."),
    ] = "threads"
    niceness: Annotated[
        int,
        Meta(
            ge=0,
            le=19,
            description="How far media work steps back where it and text want the same core: threads and processes "
            "that decode, and workers that only encode. Counted from routing.worker_niceness. 0: not at all.",
        ),
    ] = 0
    decode_timeout_s: Annotated[float, Meta(gt=0, description="Time for one picture in a decoder process.")] = 20.0
    max_decoder_bytes: Annotated[
        int, Meta(ge=16 * 2**20, description="Memory that a decoder process may take for pictures.")
    ] = 2**30
    max_decoding_pixels: Annotated[
        int, Meta(ge=1, description="Pixels being decoded at once over all requests; more wait.")
    ] = 160_000_000
    spool_directory: Annotated[
        str, Meta(description="Folder for media on their way to workers of this host; empty: one of its own in memory.")
    ] = ""
    max_spool_bytes: Annotated[int, Meta(ge=1, description="Media kept in the spool at once; more get 429.")] = 2**30
    spool_ttl_s: Annotated[
        float, Meta(gt=0, description="Time after which a file of the spool goes, whoever still counts on it.")
    ] = 600.0
