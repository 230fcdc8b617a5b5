"""Draw the pictures in this folder, so that they can be changed and compared: `python examples/draw_pictures.py`."""

from pathlib import Path

from PIL import Image, ImageDraw

FOLDER = Path(__file__).resolve().parent
SIZE = 256


def blank() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """A white square and a pen for it."""
    image = Image.new("RGB", (SIZE, SIZE), "white")
    return image, ImageDraw.Draw(image)


def red_circle() -> Image.Image:
    """One red circle."""
    image, pen = blank()
    pen.ellipse((70, 60, 190, 180), fill=(220, 40, 40))
    return image


def blue_square() -> Image.Image:
    """One blue square."""
    image, pen = blank()
    pen.rectangle((80, 75, 185, 180), fill=(40, 80, 220))
    return image


def two_shapes() -> Image.Image:
    """A green triangle and a blue square."""
    image, pen = blank()
    pen.polygon([(70, 40), (20, 130), (120, 130)], fill=(40, 160, 70))
    pen.rectangle((140, 140, 220, 220), fill=(40, 80, 220))
    return image


if __name__ == "__main__":
    for draw in (red_circle, blue_square, two_shapes):
        draw().save(FOLDER / f"{draw.__name__}.png", optimize=True)
