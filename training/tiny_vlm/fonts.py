"""The fonts numbers are written in: Pillow's own, and those that matplotlib ships if it is there."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from random import Random

from PIL import ImageFont

DEFAULT = "default"
_NAMES = [
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSans-Oblique",
    "STIXGeneral",
    "STIXGeneralBol",
    "cmr10",
    "cmss10",
    "cmtt10",
]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@lru_cache
def _folder() -> Path | None:
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    return folder if folder.is_dir() else None


@lru_cache
def available() -> tuple[str, ...]:
    """Font names, Pillow's bundled one first."""
    folder = _folder()
    files = [] if folder is None else [n for n in _NAMES if (folder / f"{n}.ttf").exists()]
    return (DEFAULT, *files)


@lru_cache(maxsize=4096)
def load(name: str, size: int) -> Font:
    """The font `name` at `size` pixels."""
    folder = _folder()
    if name == DEFAULT or folder is None:
        return ImageFont.load_default(size=size)
    return ImageFont.truetype(str(folder / f"{name}.ttf"), size)


def choose(rng: Random) -> str:
    """A font name; Pillow's own has a third, the DejaVu family most of the rest."""
    names = available()
    if rng.random() < 0.35 or len(names) == 1:
        return DEFAULT
    dejavu = [n for n in names if n.startswith("DejaVu")]
    return rng.choice(dejavu if rng.random() < 0.75 and dejavu else names)
