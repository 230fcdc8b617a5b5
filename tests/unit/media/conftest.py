"""A preparer whose counts a test can predict."""

import numpy as np
import pytest

from chiasm.errors import MediaRefusedError
from chiasm.media.prepare.base import ImagePlan, PreparedImage


class OneTokenPerPixel:
    """Counts a token for every pixel and hands the pixels through."""

    revision = "test"

    def __init__(self):
        self.prepared = []

    def plan(self, width, height):
        if width == 13:
            raise MediaRefusedError("The model cannot take pictures 13 pixels wide")
        return ImagePlan(
            width=width,
            height=height,
            num_embeddings=width * height,
            num_prompt_tokens=width * height + 2,
            resized=(width, height),
        )

    def least_size(self, width, height):
        return None

    def prepare(self, image, size=None):
        self.prepared.append((image.shape[1], image.shape[0]))
        return PreparedImage(self.plan(image.shape[1], image.shape[0]), {"pixels": np.asarray(image)})


@pytest.fixture
def preparer():
    return OneTokenPerPixel()
