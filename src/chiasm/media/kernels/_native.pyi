from typing import Any

def resize(
    source: Any,
    width: int,
    height: int,
    channels: int,
    out_width: int,
    out_height: int,
    filter: int,  # noqa: A002
    target: Any,
    patch: int,
    merge: int,
    passes: str,
    /,
) -> None: ...
def resize_part(
    source: Any,
    width: int,
    height: int,
    size: tuple[int, int],
    wanted: tuple[int, int, int, int],
    filter: int,  # noqa: A002
    target: Any,
    passes: str,
    /,
) -> None: ...
def resize_jpeg(
    file: Any,
    stored: tuple[int, int],
    size: tuple[int, int],
    wanted: tuple[int, int, int, int],
    filter: int,  # noqa: A002
    target: Any,
    passes: str,
    /,
) -> float | None: ...
def jpeg_library(path: str, /) -> bool: ...
def look_up(source: Any, table: Any, count: int, plane: int, frames: int, target: Any, passes: str, /) -> None: ...
def turn(source: Any, width: int, height: int, channels: int, orientation: int, target: Any, /) -> None: ...
def unfilter(source: Any, width: int, height: int, channels: int, target: Any, /) -> None: ...
def names() -> list[str]: ...
