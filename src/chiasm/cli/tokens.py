"""`chiasm tokens`: what pictures and videos cost a model, before anything is decoded or served."""

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.printing import FAILURE, error_fields, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chiasm.media.prepare.base import ImagePreparer
    from chiasm.media.tokens import MediaTokens

_COLUMNS = ("file", "format", "size", "turned", "resized", "tiles", "grid", "tokens", "in prompt")


def tokens(
    files: Annotated[list[Path], typer.Argument(help="Picture and video files.")],
    model: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Model directory; default: the packaged tiny model."),
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(min=1, help="Frames looked at of a video; default: as the model has it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one list for all files.")] = False,
) -> None:
    """Print size, tiles, grid and visual tokens of pictures and videos for a model, from their headers only.

    Files that the server would refuse are reported on stderr, with --json also in the list with an "error" in place of
    the numbers, and the exit status is 1.

    Try:

      chiasm tokens examples/red_circle.png

      chiasm tokens photo.jpg scan.png --model ./Qwen2.5-VL-3B-Instruct --json
    """
    from chiasm.errors import ChiasmError
    from chiasm.media.tokens import media_tokens
    from chiasm.settings import MediaSettings

    preparer, settings = _preparer(model), MediaSettings()
    told: list[object] = []
    rows: list[MediaTokens] = []
    for file in files:
        try:
            rows.append(media_tokens(file, preparer, settings, num_frames))
            told.append(rows[-1])
        except ChiasmError as error:
            _complain(str(file), error)
            told.append({"file": str(file)} | error_fields(error))
    if json:
        print_json(told)
    elif rows:
        _print_table([_COLUMNS, *map(_cells, rows)])
    if len(rows) < len(files):
        raise typer.Exit(FAILURE)


def _preparer(model: Path | None) -> "ImagePreparer":
    from chiasm.errors import UnsupportedModelError
    from chiasm.media.prepare.registry import preparer_for

    if model is None:
        with resources.as_file(resources.files("chiasm") / "models" / "tiny_vlm") as packaged:
            preparer = preparer_for(packaged)
    else:
        preparer = preparer_for(model)
    if preparer is None:
        raise UnsupportedModelError("The model takes no pictures: it has no image processor configuration")
    return preparer


def _complain(about: str, error: "Exception") -> None:
    typer.echo(f"{about}: {error}", err=True)
    if hint := getattr(error, "hint", None):
        typer.echo(f"  {hint}", err=True)


def _cells(row: "MediaTokens") -> tuple[str, ...]:
    frames = row.num_frames
    return (
        row.file,
        row.format + (" animated" if row.is_animated else "") + ("" if frames is None else f" {frames} frames"),
        f"{row.width}x{row.height}",
        "no" if row.orientation == 1 else f"EXIF {row.orientation}",
        f"{row.resized[0]}x{row.resized[1]}",
        f"{row.tiles[0]}x{row.tiles[1]}",
        "-" if row.grid_thw is None else "x".join(map(str, row.grid_thw)),
        str(row.num_visual_tokens),
        str(row.num_prompt_tokens),
    )


def _print_table(rows: "Iterable[tuple[str, ...]]") -> None:
    lines = list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
