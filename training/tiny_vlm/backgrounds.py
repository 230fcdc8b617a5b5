"""Backgrounds: plain, gradient, noisy, and the two procedural stand-ins for photographs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageFilter

from tiny_vlm import palette
from tiny_vlm.palette import RGB

# What an answer calls a background: a colour name where it is plain, else one of these.
TEXTURES = ["gradient", "noisy", "colorful"]
LABELS = [*palette.BACKGROUNDS, *TEXTURES]


@dataclass(frozen=True)
class Background:
    """A reproducible background: `draw` gives the same picture every time."""

    label: str
    colours: tuple[RGB, ...]
    strength: int = 0
    seed: int = 0
    style: str = "plain"

    def draw(self, width: int, height: int) -> Image.Image:
        """The background as a picture of the given size."""
        if self.style == "plain":
            return Image.new("RGB", (width, height), self.colours[0])
        noise = np.random.default_rng(self.seed)
        if self.style == "gradient":
            return _gradient(noise, self.colours, width, height)
        if self.style == "noise":
            return _grain(noise, self.colours[0], self.strength, width, height)
        field = _one_over_f(noise) if self.style == "clouds" else _blobs(noise)
        return _coloured(field, self.colours, width, height)


def plain(rng: Random, name: str | None = None, pure: bool = False) -> Background:
    """A plain background; white is by far the commonest."""
    if name is None:
        name = "white" if rng.random() < (0.75 if pure else 0.5) else rng.choice(["gray", "beige", "cyan"])
        if rng.random() < (0.1 if pure else 0.35):
            name = rng.choice(palette.BACKGROUNDS)
    rgb = palette.PURE.get(name, (240, 225, 190)) if pure else palette.sample(rng, name)
    return Background(name, (rgb,))


def textured(rng: Random) -> Background:
    """A gradient, a noisy background, or something photo-like."""
    style = rng.choice(["gradient", "gradient", "noise", "noise", "clouds", "blobs"])
    seed = rng.getrandbits(31)
    first = palette.sample(rng, rng.choice(palette.BACKGROUNDS))
    if style == "noise":
        return Background("noisy", (first,), rng.randint(14, 45), seed, style)
    second = palette.sample(rng, rng.choice(palette.BACKGROUNDS))
    for _ in range(8):
        if palette.distance(first, second) > 80:
            break
        second = palette.sample(rng, rng.choice(palette.BACKGROUNDS))
    if style == "gradient":
        return Background("gradient", (first, second), 0, seed, style)
    # Photo-like backgrounds keep to muted colours, so that something contrasts with all of them.
    base = tuple(palette.mix(c, first, 0.4) for c in (first, second))
    return Background("colorful", base, 0, seed, style)


def _gradient(noise: np.random.Generator, colours: tuple[RGB, ...], w: int, h: int) -> Image.Image:
    a, b = (np.array(c, np.float32) for c in colours[:2])
    kind = noise.integers(3)
    y, x = np.mgrid[0:32, 0:32].astype(np.float32) / 31
    ramp = y if kind == 0 else x if kind == 1 else (x + y) / 2
    if noise.random() < 0.5:
        ramp = 1 - ramp
    pixels = a + (b - a) * ramp[..., None]
    return Image.fromarray(pixels.astype(np.uint8)).resize((w, h), Image.Resampling.BILINEAR)


def _grain(noise: np.random.Generator, rgb: RGB, strength: int, w: int, h: int) -> Image.Image:
    grey = noise.random() < 0.4
    scale = int(noise.integers(1, 4))
    size = (h // scale + 1, w // scale + 1, 1 if grey else 3)
    pixels = np.array(rgb, np.int16) + noise.integers(-strength, strength + 1, size, dtype=np.int16)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if scale > 1:
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.BILINEAR)
    return image.crop((0, 0, w, h))


def _one_over_f(noise: np.random.Generator, side: int = 64) -> np.ndarray:
    fy, fx = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]
    amplitude = 1 / np.maximum(np.hypot(fx, fy), 1 / side) ** noise.uniform(0.9, 1.6)
    phase = noise.random((3, side, side // 2 + 1)) * 2 * np.pi
    waves = np.fft.irfft2(amplitude * np.exp(1j * phase), s=(side, side))
    waves -= waves.mean((1, 2), keepdims=True)
    return (waves / (waves.std((1, 2), keepdims=True) + 1e-6)).transpose(1, 2, 0)


def _blobs(noise: np.random.Generator, side: int = 48) -> np.ndarray:
    small = Image.fromarray(noise.integers(0, 256, (side, side, 3), dtype=np.uint8))
    blurred = np.asarray(small.filter(ImageFilter.GaussianBlur(float(noise.uniform(3, 7)))), np.float32)
    blurred = blurred - blurred.mean((0, 1))
    return blurred / (blurred.std((0, 1)) + 1e-6)


def _coloured(field: np.ndarray, colours: tuple[RGB, ...], w: int, h: int) -> Image.Image:
    a, b = (np.array(c, np.float32) for c in colours[:2])
    blend = 1 / (1 + np.exp(-1.5 * field[..., :1]))
    pixels = a + (b - a) * blend + 12 * field
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return image.resize((w, h), Image.Resampling.BICUBIC)
