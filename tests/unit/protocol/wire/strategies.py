"""Random requests, events and handles: every field of each takes every kind of value that its type allows."""

import hashlib
import json

from hypothesis import strategies as st

from chiasm.observability.receipt import Span
from chiasm.protocol.adapters import AdapterRef
from chiasm.protocol.generation import (
    ChatPrompt,
    ChoiceFinished,
    GenerateRequest,
    ItemPart,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TextPrompt,
    TokenEvent,
    TokenLogprob,
    TokensPrompt,
    Usage,
)
from chiasm.protocol.kv import KvHandle, KvMetadata
from chiasm.protocol.media import (
    EmbeddingHandle,
    EmbeddingMetadata,
    InlineSource,
    LateSource,
    MediaItem,
    SpoolSource,
    VideoSample,
)
from chiasm.protocol.worker import EncodeRequest, EncodeResponse

INT64 = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**31)
POSITIVE = st.integers(1, 2**31)
TEXT = st.text(max_size=12)
NAME = st.text(alphabet="abc-", min_size=1, max_size=8)
IDENTITY = st.integers(0, 5).map(lambda number: hashlib.sha256(bytes([number])).hexdigest())
SECONDS = st.floats(0.001, 1e6)
DTYPE = st.sampled_from(["float32", "bfloat16", "float16"])


def _range(least, most, *, exclude_min=False):
    return st.floats(least, most, exclude_min=exclude_min)


KIND = st.sampled_from(["image", "video"])
METADATA = st.builds(
    EmbeddingMetadata,
    kind=KIND,
    second_per_grid_s=st.none() | st.floats(0, 100),
    identity=IDENTITY,
    num_embeddings=POSITIVE,
    shape=st.tuples(POSITIVE, POSITIVE),
    dtype=DTYPE,
    grid_thw=st.none() | st.tuples(POSITIVE, POSITIVE, POSITIVE),
    merge_size=POSITIVE,
    model_revision=TEXT,
    processor_revision=TEXT,
    checksum=TEXT,
)
HANDLE = st.builds(
    EmbeddingHandle,
    connector=NAME,
    key=TEXT,
    address=TEXT,
    metadata=METADATA,
    expires_at_s=st.none() | SECONDS,
)
KV = st.builds(
    KvHandle,
    connector=NAME,
    key=TEXT,
    address=TEXT,
    metadata=st.builds(
        KvMetadata,
        num_tokens=POSITIVE,
        shape=st.tuples(POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE),
        dtype=DTYPE,
        model_revision=TEXT,
        prompt_hash=IDENTITY,
        checksum=TEXT,
    ),
    expires_at_s=SECONDS,
)
SOURCE = (
    st.builds(InlineSource, data=st.binary(max_size=40))
    | st.builds(SpoolSource, name=st.text(alphabet="0123456789abcxyz-", min_size=1, max_size=40), num_bytes=POSITIVE)
    | HANDLE
    | st.builds(LateSource)
)
VIDEO = st.builds(
    VideoSample,
    num_frames=POSITIVE,
    fps=st.floats(0, 1000),
    indices=st.lists(COUNT, min_size=1, max_size=5).map(tuple),
)
_ITEM_FIELDS = {
    "identity": IDENTITY,
    "format": st.sampled_from(["jpeg", "png", "webp", "mp4"]) | TEXT,
    "width": POSITIVE,
    "height": POSITIVE,
    "is_animated": st.booleans(),
    "source": SOURCE,
}
ITEM = st.builds(MediaItem, **_ITEM_FIELDS) | st.builds(MediaItem, kind=st.just("video"), video=VIDEO, **_ITEM_FIELDS)
SALT = st.just("") | TEXT
SCHEMA = st.dictionaries(TEXT, TEXT | st.integers(-5, 5) | st.none(), max_size=3).map(json.dumps)
SAMPLING = st.builds(
    SamplingParams,
    temperature=_range(0, 100),
    top_p=_range(0, 1, exclude_min=True),
    top_k=COUNT,
    min_p=_range(0, 1),
    presence_penalty=_range(-2, 2),
    frequency_penalty=_range(-2, 2),
    repetition_penalty=_range(0.01, 100),
    logit_bias=st.dictionaries(COUNT, _range(-100, 100), max_size=3),
    seed=st.none() | INT64,
    max_tokens=st.none() | POSITIVE,
    min_tokens=COUNT,
    stop=st.lists(TEXT, max_size=20).map(tuple),
    stop_token_ids=st.lists(COUNT, max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    skip_special_tokens=st.booleans(),
    num_top_logprobs=st.none() | st.integers(0, 20),
    json_schema=st.none() | SCHEMA,
    n=st.integers(1, 128),
    priority=st.integers(-100, 100),
)


def _prompts(num_items):
    part = st.builds(TextPart, text=TEXT)
    if num_items:
        part |= st.builds(ItemPart, item=st.integers(0, num_items - 1))
    parts = st.lists(part, max_size=5).map(tuple)
    message = st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), parts=parts)
    return (
        st.builds(ChatPrompt, st.lists(message, max_size=4).map(tuple), st.booleans())
        | st.builds(TextPrompt, text=TEXT)
        | st.builds(TokensPrompt, token_ids=st.lists(COUNT, max_size=5).map(tuple))
    )


ADAPTER = st.builds(
    AdapterRef,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    revision=st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    directory=TEXT,
)


@st.composite
def generate_requests(draw):
    items = tuple(draw(st.lists(ITEM, max_size=4)))
    return GenerateRequest(
        request_id=draw(TEXT),
        prompt=draw(_prompts(len(items))),
        items=items,
        sampling=draw(SAMPLING),
        stream=draw(st.booleans()),
        hands_over_kv=draw(st.booleans()),
        kv=draw(st.none() | KV),
        cache_salt=draw(SALT),
        timeout_s=draw(SECONDS),
        adapter=draw(st.none() | ADAPTER),
    )


ENCODE_REQUEST = st.builds(
    EncodeRequest,
    request_id=TEXT,
    items=st.lists(ITEM, max_size=4).map(tuple),
    cache_salt=SALT,
    timeout_s=SECONDS,
)
SPAN = st.builds(Span, TEXT, SECONDS, SECONDS, st.none() | COUNT)
SPANS = st.lists(SPAN, max_size=3).map(tuple)


@st.composite
def encode_responses(draw):
    """Some handles stand for several items."""
    known = draw(st.lists(HANDLE, min_size=1, max_size=4))
    handles = draw(st.lists(st.sampled_from(known), max_size=6))
    return EncodeResponse(handles=tuple(handles), spans=draw(SPANS))


def _logprob(top):
    return st.builds(TokenLogprob, COUNT, TEXT, st.binary(max_size=5), st.floats(-9999.0, 0), top)


LOGPROBS = st.lists(_logprob(st.lists(_logprob(st.just(())), max_size=2).map(tuple)), max_size=3).map(tuple)
NUM_CHOICES = 4
CHOICE = st.integers(0, NUM_CHOICES - 1)
TOKEN = st.builds(TokenEvent, CHOICE, TEXT, st.lists(COUNT, max_size=3).map(tuple), st.none() | LOGPROBS)
CHOICE_FINISHED = st.builds(
    ChoiceFinished, CHOICE, st.sampled_from(["stop", "length"]), st.none() | TEXT | st.integers(0, 2**31)
)
USAGE = st.builds(
    Usage,
    num_prompt_tokens=COUNT,
    num_output_tokens=COUNT,
    num_cached_tokens=COUNT,
    num_visual_tokens=COUNT,
    num_cached_embeddings=COUNT,
)
FINISHED = st.builds(RequestFinished, USAGE, SPANS, st.none() | KV)
EVENTS = st.tuples(st.lists(TOKEN | CHOICE_FINISHED, max_size=8), FINISHED).map(lambda pair: [*pair[0], pair[1]])
