"""`chiasm media`: what the server would say to a picture, a video or a piece of audio."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.media_verdict import verdict_lines
from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import FAILURE, LoadingLine, error_fields, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chiasm.launch.parity_fast import MovementSummary, ScoreMovement
    from chiasm.media.parity import PreparationParity
    from chiasm.media.prepare.base import ImagePreparer
    from chiasm.media.verdict import MediaVerdict
    from chiasm.media.video.report import SampledVideo
    from chiasm.settings import Settings

media = Commands(help="Look at pictures, videos and audio as the server would.", no_args_is_help=True)


@media.command()
def check(
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE|URL...", help="Pictures, videos, audio; URLs begin with a scheme.")
    ],
    model: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Model directory: count visual tokens, apply its limits."),
    ] = None,
    kind: Annotated[
        Literal["image", "video", "audio"] | None,
        typer.Option("--as", help="What a request would send it as; default: what its first bytes, or its URL, say."),
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(min=1, help="Frames looked at of a video; default: 2 a second.")
    ] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Put each medium through the server's rules (policy, format, header, limits), then decode it.

    The exit status is 1 when one is refused; its code, cause and hint are those that a request would get. Try:

      chiasm media check photo.jpg scan.tiff --model ./Qwen2.5-VL-3B-Instruct

      chiasm media check clip.mp4 speech.flac --num-frames 16

      chiasm media check https://img.example/a.png --set 'media.allowed_domains=["img.example"]'
    """
    settings = resolved(config_file, overrides).settings
    preparer = None if model is None else _preparer(model)

    async def check_all() -> "list[MediaVerdict]":
        from chiasm.media.check import check_media

        deadline_s = settings.gateway.request_timeout_s
        return [
            await check_media(source, settings.media, preparer, kind=kind, num_frames=num_frames, deadline_s=deadline_s)
            for source in sources
        ]

    verdicts = asyncio.run(check_all())
    if json:
        print_json(verdicts)
    else:
        for verdict in verdicts:
            typer.echo("\n  ".join(verdict_lines(verdict)))
    if not all(verdict.is_accepted for verdict in verdicts):
        raise typer.Exit(FAILURE)


@media.command()
def parity(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Pictures of your own.")],
    model: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Model directory; default: the packaged tiny model."),
    ] = None,
    ask: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Ask the model this about each picture, or score them for it, both ways."),
    ] = "",
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Measure what `media.preparation = "fast"` would change: pixels, time and, with --ask, answers.

    Of a model that embeds or scores pictures: its embeddings, its scores for the text, and their ranking.

    A peak signal-to-noise ratio of 40 dB is about what JPEG itself loses at good quality. Try:

      chiasm media parity photos/*.jpg --model ./Qwen2.5-VL-3B-Instruct --ask "What is written here?"
    """
    from chiasm.launch.model import model_directory
    from chiasm.launch.parity_fast import score_movements, summary_of
    from chiasm.media.parity import preparation_parity
    from chiasm.pooling.model_files import is_pooling_directory

    settings = resolved(config_file, overrides).settings
    directory = model or model_directory("")
    preparer = _preparer(directory)
    rows = [preparation_parity(str(file), file.read_bytes(), preparer, settings.media) for file in files]
    pools = is_pooling_directory(directory)
    with LoadingLine() as progress:
        scores = score_movements(directory, files, ask, settings, progress) if pools else []
    answers = _answers(directory, files, ask, settings) if ask and not pools else []
    if json:
        summary = summary_of(scores) if scores else None
        print_json({"pictures": rows, "answers": answers, "scores": scores, "summary": summary})
        return
    for row in rows:
        typer.echo(_parity_line(row))
    for file, (exact, fast) in zip(files, answers, strict=False):
        typer.echo(f"{file}: {'the same answer' if exact == fast else 'another answer'}")
        if exact != fast:
            typer.echo(f"  exact: {exact}\n  fast:  {fast}")
    for one in scores:
        typer.echo(_movement_line(one))
    if len(scores) > 1:
        typer.echo(_summary_line(summary_of(scores)))


@media.command()
def frames(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Videos: MP4, MOV, WebM, MKV.")],
    fps: Annotated[float, typer.Option(min=0.001, help="Frames per second of the video's time.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="Frames of the whole video, instead of --fps.")] = None,
    save: Annotated[Path | None, typer.Option(file_okay=False, help="Folder to write the frames to, as PNG.")] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Sample videos as a Qwen2-VL model's processor does, within the server's limits.

    Prints codec, size, length and which frames are taken when. The exit status is 1 when a video is refused. Try:

      chiasm media frames clip.mp4 --fps 1 --save frames/
    """
    from chiasm.errors import MediaError
    from chiasm.media.video.report import sampled
    from chiasm.media.video.sampling import SamplingRule

    settings = resolved(config_file, overrides).settings.media
    rule = SamplingRule(fps=None, num_frames=count) if count else SamplingRule(fps=fps)
    told: list[object] = []
    rows: list[SampledVideo] = []
    for file in files:
        try:
            rows.append(sampled(file, rule, settings, save))
            told.append(rows[-1])
        except MediaError as error:
            typer.echo(f"{file}: refused, {error.code}: {error}", err=True)
            told.append({"file": str(file)} | error_fields(error))
    if json:
        print_json(told)
    else:
        for row in rows:
            typer.echo("\n  ".join(_video_lines(row)))
    if len(rows) < len(files):
        raise typer.Exit(FAILURE)


def _video_lines(row: "SampledVideo") -> "Iterator[str]":
    turned = "" if (row.width, row.height) == (row.stored_width, row.stored_height) else ", turned"
    yield (
        f"{row.file}: {row.codec} in {row.container}, {row.width}x{row.height}{turned}, {row.num_frames} frames,"
        f" {row.duration_s:.2f} s, {row.average_fps:.3g} frames/s"
    )
    times = ", ".join(f"{index} ({time_s:.2f} s)" for index, time_s in zip(row.indices, row.times_s, strict=True))
    yield f"{len(row.indices)} frames: {times}"
    yield f"decoded in {row.cpu_s * 1000:.0f} ms CPU"


def _answers(directory: Path, files: list[Path], question: str, settings: "Settings") -> "list[tuple[str, str]]":
    """The model's greedy answers, to exactly and to fast prepared pictures."""
    from msgspec.structs import replace

    from chiasm import LLM

    columns = []
    for preparation in ("exact", "fast"):
        chosen = replace(
            settings,
            media=replace(settings.media, preparation=preparation),
            engine=replace(settings.engine, model=str(directory)),
        )
        with LLM(settings=chosen) as llm:
            parts = [[{"type": "image", "image": file}, {"type": "text", "text": question}] for file in files]
            chats = [[{"role": "user", "content": part}] for part in parts]
            columns.append([result.text for result in llm.chat_batch(chats, temperature=0)])
    return list(zip(*columns, strict=True))


def _parity_line(row: "PreparationParity") -> str:
    error = "equal" if row.psnr_db is None else f"{row.psnr_db:.1f} dB, at most {row.max_error} of 255"
    gain = f"{row.exact_cpu_s * 1e3:.1f} -> {row.fast_cpu_s * 1e3:.1f} ms CPU"
    size = f"{row.width}x{row.height} to {row.resized[0]}x{row.resized[1]}"
    return f"{row.file}: {row.format} {size}: {error}; {gain}"


def _movement_line(row: "ScoreMovement") -> str:
    parts = [] if row.cosine is None else [f"cosine of the two embeddings {row.cosine:.6f}"]
    if row.exact_score is not None and row.fast_score is not None:
        moved = row.fast_score - row.exact_score
        parts.append(f"score {row.exact_score:.6f} -> {row.fast_score:.6f}, by {moved:+.2g}")
    return f"{row.file}: {'; '.join(parts)}"


def _summary_line(found: "MovementSummary") -> str:
    parts = [] if found.least_cosine is None else [f"cosine at least {found.least_cosine:.6f}"]
    if found.max_difference is not None:
        parts.append(f"scores move by at most {found.max_difference:.2g}, on average {found.mean_difference:.2g}")
    if found.rank_agreement is not None:
        moved = f"{found.num_moved} of them on another place" if found.num_moved else "no change"
        parts.append(f"ranking: {moved}, {found.rank_agreement:.1%} of pairs in the same order")
    return f"all {found.num_pictures} pictures: {'; '.join(parts)}"


def _preparer(model: Path) -> "ImagePreparer":
    from chiasm.errors import UnsupportedModelError
    from chiasm.media.prepare.registry import preparer_for

    preparer = preparer_for(model)
    if preparer is None:
        raise UnsupportedModelError("The model takes no pictures: it has no image processor configuration")
    return preparer
