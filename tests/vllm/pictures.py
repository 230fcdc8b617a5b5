"""Pictures, and requests about them as a gateway would send them to encoders and consumers."""

import base64
import hashlib
import io
import itertools
import secrets
from typing import Any

from PIL import Image, ImageDraw

from tests.vllm.servers import VllmServer

Params = dict[str, dict[str, Any]]
_COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink")
_numbers = itertools.count(secrets.randbelow(50_000))  # servers that somebody keeps running remember earlier runs


def new_picture(side: int = 224) -> bytes:
    """A picture that no test has used before: its identity is nowhere cached."""
    number = next(_numbers)
    image = Image.new("RGB", (side, side), (90, number // 250 % 250, number % 250))
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 20, side // 2, side // 2), fill=_COLOURS[number % 7])
    draw.ellipse((side // 2, side // 3, side - 9, side - 30), fill=_COLOURS[(number + 3) % 7])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def identity(picture: bytes) -> str:
    """What the gateway calls a picture."""
    return hashlib.sha256(picture).hexdigest()


def raw(picture: bytes, uuid: str | None = None) -> dict[str, Any]:
    """The picture itself, named only when `uuid` is given."""
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    return part | ({"uuid": uuid} if uuid is not None else {})


def reference(picture: bytes, grid: object) -> dict[str, Any]:
    """A picture by identity and grid alone."""
    return {"type": "image_embeds", "image_embeds": {"image_grid_thw": grid}, "uuid": identity(picture)}


def encode(encoder: VllmServer, *pictures: bytes) -> Params:
    """Have pictures encoded; returns what the encoder says about them."""
    parts = [raw(picture, identity(picture)) for picture in pictures]
    status, body = encoder.chat([{"role": "user", "content": parts}])
    assert status == 200, body
    params: Params = body["ec_transfer_params"]
    return params


def grid(params: Params, picture: bytes) -> list[int]:
    """The grid that the encoder reported."""
    found: list[int] = params[identity(picture)]["metadata"]["image_grid_thw"]
    return found


def question(*parts: dict[str, Any], text: str = "What is in the picture?") -> list[dict[str, Any]]:
    """Chat messages: pictures, then a question."""
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def ask(
    consumer: VllmServer, *parts: dict[str, Any], params: Params | None = None, **fields: object
) -> tuple[int, Any]:
    """Ask about pictures; returns status and, when it is 200, tokens with their logprobs."""
    fields = {"max_tokens": 6, "logprobs": True} | fields
    if params is not None:
        fields["ec_transfer_params"] = params
    status, body = consumer.chat(question(*parts), **fields)
    return status, tokens(body) if status == 200 else body


def refused(answer: tuple[int, Any]) -> bool:
    """Whether a request failed, and the engine did not."""
    status, body = answer
    return status == 500 and body["error"]["message"] == "Internal server error"


def tokens(body: dict[str, Any]) -> list[tuple[str, float]]:
    """Tokens and logprobs of an answer, rounded to what fp32 keeps in another order of additions."""
    return [(t["token"], round(t["logprob"], 4)) for t in body["choices"][0]["logprobs"]["content"]]
