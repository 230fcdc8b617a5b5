"""What is asked while something fails: short chats about pictures drawn for the purpose."""

import base64
import hashlib
from io import BytesIO

import msgspec
from PIL import Image, ImageDraw

_SIDE_PX = 128
_COLOURS = ("red", "blue", "green", "gold", "purple", "black")


class Question(msgspec.Struct, frozen=True):
    """A chat of one message: pictures (URLs), then text. `identities` are those of pictures in data URLs."""

    text: str
    pictures: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    max_tokens: int = 12
    timeout_s: float = 120.0

    def body(self) -> bytes:
        """The request, greedy and streamed, with the tokens told apart."""
        images = [{"type": "image_url", "image_url": {"url": url}} for url in self.pictures]
        message = {"role": "user", "content": [*images, {"type": "text", "text": self.text}]}
        options = {"temperature": 0, "ignore_eos": True, "stream": True, "logprobs": True}
        own = {"chiasm": {"timeout_s": self.timeout_s}}
        return msgspec.json.encode({"messages": [message], "max_tokens": self.max_tokens, **options, **own})


def about(numbers: tuple[int, ...], text: str = "What color is the shape?", max_tokens: int = 12) -> Question:
    """A question about pictures; another number is another picture."""
    files = [_drawn(number) for number in numbers]
    urls = tuple(f"data:image/png;base64,{base64.b64encode(file).decode()}" for file in files)
    return Question(text, urls, tuple(hashlib.sha256(file).hexdigest() for file in files), max_tokens)


def _drawn(number: int) -> bytes:
    """A shape whose colour and place say the number."""
    image = Image.new("RGB", (_SIDE_PX, _SIDE_PX), "white")
    place, colour = divmod(number, len(_COLOURS))
    top, left = 8 + place // 48 % 48, 8 + place % 48
    pen = ImageDraw.Draw(image)
    pen.ellipse((left, top, left + 60, top + 60), fill=_COLOURS[colour])
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
