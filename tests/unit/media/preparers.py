"""Preparers that wait or misbehave; picklable, so that they do it in a decoder process too."""

import os
import signal
import time
import uuid
from pathlib import Path

import numpy as np

from chiasm.errors import MediaRefusedError
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.output import new_output


class HandsThrough:
    """The pixels as they are."""

    revision = "hands through"

    def plan(self, width, height):
        return ImagePlan(width=width, height=height, num_embeddings=1, num_prompt_tokens=1, resized=(width, height))

    def least_size(self, width, height):
        return None

    def prepare(self, image, size=None):
        return PreparedImage(self.plan(image.shape[1], image.shape[0]), self.arrays(image))

    def arrays(self, image):
        return {"pixels": np.asarray(image)}


class Gate(HandsThrough):
    """Waits, wherever it runs, until the gate is opened: a file, since it may be another process."""

    def __init__(self, folder):
        self.folder = str(folder)

    @property
    def num_inside(self):
        return len(list(Path(self.folder).glob("inside-*")))

    def open(self):
        Path(self.folder, "open").touch()

    def arrays(self, image):
        Path(self.folder, f"inside-{uuid.uuid4()}").touch()
        for _ in range(2000):
            if Path(self.folder, "open").exists():
                return super().arrays(image)
            time.sleep(0.005)
        raise AssertionError("the gate was never opened")


class ManyArrays(HandsThrough):
    def arrays(self, image):
        return {
            "floats": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
            "mask": np.array([[True, False]]),
            "grid": np.array([1, 2, 3], dtype=np.int64),
            "empty": np.empty((0, 4), np.float32),
            "scalar": np.array(7, dtype=np.int32),
        }


class Killed(HandsThrough):
    def __init__(self, number):
        self.number = number

    def arrays(self, image):
        os.kill(os.getpid(), self.number)
        return {}


class Leaves(HandsThrough):
    def arrays(self, image):
        os._exit(3)


class Sleeps(HandsThrough):
    """Cannot be asked to end."""

    def arrays(self, image):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        return {}


class Swells(HandsThrough):
    def arrays(self, image):
        return {"pixels": np.ones(2**31, np.uint8)}


class Fails(HandsThrough):
    def arrays(self, image):
        raise ZeroDivisionError("secret")


class Refuses(HandsThrough):
    def arrays(self, image):
        raise MediaRefusedError("Not this one", hint="Another")


class SaysWhere(HandsThrough):
    def arrays(self, image):
        return {"pid": np.array([os.getpid()])}


class Large(HandsThrough):
    """Results that lie in a block: one written there, one made elsewhere, and a small one that does not."""

    def __init__(self, value=7, num_bytes=300_000):
        self.value, self.num_bytes = value, num_bytes

    def arrays(self, image):
        written = new_output((self.num_bytes // 3, 3))
        written[...] = self.value
        return {"written": written, "copied": np.full((50, 400), self.value, np.float32), "small": np.arange(5)}


class WritesThen(Large):
    """Writes a large result and then does what the other one does."""

    def __init__(self, then):
        super().__init__()
        self.then = then

    def arrays(self, image):
        super().arrays(image)
        return self.then.arrays(image)
