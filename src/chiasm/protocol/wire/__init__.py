"""The worker contract as HTTP bodies, in the form that vLLM speaks; bytes in, bytes out, no HTTP library.

A call is `POST /v1/chat/completions` or `POST /v1/completions`. Encoded items are `image_embeds` parts that hold only
metadata, with their handles in `ec_transfer_params`; others are `image_url` parts (a data URL, or a name in the media
spool). Keys and values travel as handles in `kv_transfer_params`. What has no field there is in one object, `chiasm`,
which other servers ignore. Nothing is lost: what one side encodes, the other decodes to an equal object. A third call,
`POST /v1/embeddings/late`, is only for workers that say that they take it.

Whatever comes from the other side is checked here: a bad request is a `RequestError`, a bad answer an `EngineError`.
"""

from chiasm.protocol.wire.answers import AnswerEncoder, encode_encoded
from chiasm.protocol.wire.faults import decode_fault, encode_fault
from chiasm.protocol.wire.reading import StreamDecoder, decode_encoded, decode_whole
from chiasm.protocol.wire.requests import CHAT_PATH, TEXT_PATH, WireRequest, decode_request, encode_request
from chiasm.protocol.wire.supply import SUPPLY_PATH, decode_supply, encode_supply

__all__ = [
    "CHAT_PATH",
    "SUPPLY_PATH",
    "TEXT_PATH",
    "AnswerEncoder",
    "StreamDecoder",
    "WireRequest",
    "decode_encoded",
    "decode_fault",
    "decode_request",
    "decode_supply",
    "decode_whole",
    "encode_encoded",
    "encode_fault",
    "encode_request",
    "encode_supply",
]
