"""Scenes to pixels, with plain Pillow."""

from __future__ import annotations

import io
import math

from PIL import Image, ImageDraw

from tiny_vlm import fonts
from tiny_vlm.scenes import Number, Scene, Shape

Point = tuple[float, float]


def render(scene: Scene) -> Image.Image:
    """The picture as a user would send it."""
    image = scene.background.draw(scene.width, scene.height)
    if scene.shapes:
        image = _shapes(image, scene)
    if scene.number:
        _number(image, scene.number)
    if scene.jpeg:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=scene.jpeg)
        image = Image.open(buffer).convert("RGB")
    return image


def processed(scene: Scene) -> Image.Image:
    """The picture at the size the image processor makes of it."""
    image = render(scene)
    if image.size != scene.processed:
        image = image.resize(scene.processed, Image.Resampling.BICUBIC)
    return image


def _shapes(image: Image.Image, scene: Scene) -> Image.Image:
    if not scene.antialias:
        draw = ImageDraw.Draw(image)
        for shape in scene.shapes:
            _shape(draw, shape, 1)
        return image
    for shape in scene.shapes:
        _smooth_shape(image, shape)
    return image


def _smooth_shape(image: Image.Image, shape: Shape, zoom: int = 2) -> None:
    """Draw one shape at twice its size and shrink it, as a paint program smooths edges."""
    margin = 0.15 * max(shape.w, shape.h) + 2
    left, top = math.floor(shape.box[0] - margin), math.floor(shape.box[1] - margin)
    right, bottom = math.ceil(shape.box[2] + margin), math.ceil(shape.box[3] + margin)
    patch = image.crop((left, top, right, bottom))
    big = patch.resize((patch.width * zoom, patch.height * zoom), Image.Resampling.NEAREST)
    _shape(ImageDraw.Draw(big), shape, zoom, -left, -top)
    image.paste(big.resize(patch.size, Image.Resampling.BOX), (left, top))


def _outline(shape: Shape) -> list[Point]:
    """The corners of a shape, relative to its centre, for a box of two by two."""
    if shape.kind in ("square", "rectangle"):
        return [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    if shape.kind == "diamond":
        return [(0, -1), (1, 0), (0, 1), (-1, 0)]
    if shape.kind == "triangle":
        apex = 2 * shape.variant - 1
        corners: list[Point] = [(apex, -1), (1, 1), (-1, 1)]
        return [(x, -y) for x, y in corners] if shape.flipped else corners
    if shape.kind == "star":
        inner = shape.variant if shape.variant != 0.5 else 0.41
        radii = [1.1 if k % 2 == 0 else 1.1 * inner for k in range(10)]
        turns = [-math.pi / 2 + k * math.pi / 5 for k in range(10)]
        return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, turns, strict=True)]
    steps = 48
    angles = [2 * math.pi * k / steps for k in range(steps)]
    return [(math.cos(a), math.sin(a)) for a in angles]


def _corners(shape: Shape, zoom: int, dx: float, dy: float) -> list[Point]:
    a = math.radians(shape.angle)
    out = []
    for px, py in _outline(shape):
        x, y = px * shape.w / 2, py * shape.h / 2
        rx, ry = x * math.cos(a) - y * math.sin(a), x * math.sin(a) + y * math.cos(a)
        out.append(((shape.x + rx + dx) * zoom, (shape.y + ry + dy) * zoom))
    return out


def _shape(draw: ImageDraw.ImageDraw, shape: Shape, zoom: int, dx: float = 0, dy: float = 0) -> None:
    box = [(shape.box[0] + dx) * zoom, (shape.box[1] + dy) * zoom]
    box += [(shape.box[2] + dx) * zoom, (shape.box[3] + dy) * zoom]
    fill, edge, width = shape.rgb, shape.border, max(1, round(max(shape.w, shape.h) * 0.02)) * zoom
    if shape.stroke:
        fill, edge, width = None, shape.rgb, shape.stroke * zoom  # type: ignore[assignment]
    level = abs(shape.angle) < 0.01
    if level and shape.kind in ("square", "rectangle"):
        draw.rectangle(box, fill=fill, outline=edge, width=width if edge else 0)
    elif level and shape.kind in ("circle", "oval"):
        draw.ellipse(box, fill=fill, outline=edge, width=width if edge else 0)
    else:
        corners = _corners(shape, zoom, dx, dy)
        if fill is not None:
            draw.polygon(corners, fill=fill)
        if edge is not None:
            draw.line([*corners, corners[0], corners[1]], fill=edge, width=width, joint="curve")


def _write(draw: ImageDraw.ImageDraw, number: Number, x: float, y: float, fill: object) -> None:
    font = fonts.load(number.font, number.size)
    for digit, advance in zip(number.text, number.advances(), strict=True):
        draw.text((x, y), digit, fill=fill, font=font, stroke_width=number.bold)  # type: ignore[arg-type]
        x += advance + number.gap


def _number(image: Image.Image, number: Number) -> None:
    if abs(number.angle) < 0.01:
        _write(ImageDraw.Draw(image), number, number.x, number.y, number.rgb)
        return
    w, h = number.extent
    cx, cy = number.x + w / 2, number.y + h / 2
    side = math.ceil(math.hypot(w, h)) + 4
    mask = Image.new("L", (side, side))
    _write(ImageDraw.Draw(mask), number, side / 2 - w / 2, side / 2 - h / 2, 255)
    mask = mask.rotate(number.angle, Image.Resampling.BILINEAR)
    image.paste(number.rgb, (round(cx - side / 2), round(cy - side / 2)), mask)
