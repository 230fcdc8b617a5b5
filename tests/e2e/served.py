"""What the end-to-end tests ask, and what they look at behind the server's back."""

import base64
import secrets
import time
from io import BytesIO

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

RGB = {"red": (220, 40, 40), "blue": (40, 80, 220), "green": (40, 160, 70), "yellow": (235, 200, 40)}


class Served:
    """A running server of this process."""

    def __init__(self, server):
        self.address = server.address
        self.worker = server._backend._worker

    def stats(self):
        return self.worker.stats()

    def until_idle(self, timeout_s=30.0):
        """Wait until the engine holds nothing for anybody; fails when it does not come to that."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            stats = self.stats()
            held = (stats.num_running, stats.num_waiting, stats.num_open_requests, stats.num_held_embeddings)
            if held == (0, 0, 0, 0) and stats.num_free_slots == 16:
                return stats
            assert time.monotonic() < deadline_s, f"not idle: {stats}"
            time.sleep(0.02)


def picture(color, shape="circle", size=192, shift=0, note=""):
    """A PNG data URL of one shape; `shift` and `note` make another picture, the latter with the same pixels."""
    image = Image.new("RGB", (size, size), "white")
    box = (50 + shift, 50, 140 + shift, 140)
    pen = ImageDraw.Draw(image)
    (pen.ellipse if shape == "circle" else pen.rectangle)(box, fill=RGB[color])
    file = BytesIO()
    text = PngInfo()
    if note:
        text.add_text("note", note)
    image.save(file, "PNG", pnginfo=text)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def fresh(color, shape="circle"):
    """A picture that no cache has seen, also when a test runs again on the same server."""
    return picture(color, shape, note=secrets.token_hex(8))


def ask(*parts):
    """A conversation of one user message; strings that are data URLs are pictures or videos, others are text."""
    return [{"role": "user", "content": [_content(part) for part in parts]}]


def _content(part):
    kind = "video_url" if part.startswith("data:video") else "image_url"
    return {"type": kind, kind: {"url": part}} if part.startswith("data:") else {"type": "text", "text": part}
