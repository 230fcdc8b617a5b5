"""`chiasm ask`: one question about pictures or videos, on a running server or on an engine of its own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import LoadingLine, print_json

if TYPE_CHECKING:
    from chiasm.cli.client import ChatClient

_URL_SCHEMES = ("http://", "https://", "data:")


def ask(  # noqa: PLR0913 - each argument is an option
    pictures: Annotated[
        list[str] | None, typer.Argument(metavar="PICTURE", help="Files or URLs, in order.", show_default=False)
    ] = None,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="In quotes.", show_default=False)] = ...,  # type: ignore[assignment]  # required
    video: Annotated[
        list[str] | None,
        typer.Option("--video", metavar="FILE", help="A video, file or URL; comes after the pictures."),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(min=0.01, help="Frames looked at per second of video.", show_default=False)
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(min=1, help="Frames looked at of a video, in all.", show_default=False)
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Ask this server, for example http://127.0.0.1:8000.", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="CHIASM_API_KEY", help="Key for --server.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model directory to load, or with --server the model's name.", show_default=False),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.", show_default=False)] = None,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 always takes the likeliest token.")] = 0.0,
    stages: Annotated[bool, typer.Option("--stages", help="Show where the time to the first token went.")] = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Ask a question about pictures and videos and print the answer as it comes.

    Without --server a model is loaded for this one question. Pictures keep their order.

    Try:

      chiasm ask examples/red_circle.png "What color is the shape?"

      chiasm ask before.png after.png "What changed?" --stages

      chiasm ask --video clip.mp4 --num-frames 16 "What happens?"

      chiasm ask --server http://127.0.0.1:8000 "Hello" --json
    """
    pictures, videos = pictures or [], video or []
    if fps is not None and num_frames is not None:
        raise typer.BadParameter("--fps and --num-frames exclude each other.")
    if not pictures and not videos and Path(question).is_file():
        raise typer.BadParameter(f"Only a file is given. Add a question: chiasm ask {question} 'What is this?'")
    parts = [*map(_picture, pictures), *map(_video, videos), {"type": "text", "text": question}]
    body = _body(parts, temperature=temperature, max_tokens=max_tokens, model=model if server else None)
    if videos and (fps or num_frames):
        body["mm_processor_kwargs"] = {"fps": fps} if num_frames is None else {"num_frames": num_frames}
    values = {"engine__model": model} | _fetching([*pictures, *videos])
    answer = _Answer(is_shown=not json)
    with _client(server, api_key, config_file, overrides, values) as client:
        for chunk in client.stream(body):
            answer.add(chunk)
    if json:
        print_json({"text": answer.text, "usage": answer.usage, "receipt": answer.receipt})
        return
    typer.echo("")
    if stages:
        _print_stages(answer.receipt)


def _body(parts: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": parts}],
        "stream_options": {"include_usage": True},
        "chiasm": {"receipt": True},
        **options,
    }


class _Answer:
    """What has come so far, shown while it comes."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self.text = ""
        self.usage: dict[str, Any] | None = None
        self.receipt: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        for choice in chunk["choices"]:
            text = choice["delta"].get("content", "")
            self.text += text
            if self._is_shown and text:
                sys.stdout.write(text)
                sys.stdout.flush()
        self.usage = chunk.get("usage") or self.usage
        self.receipt = chunk.get("chiasm", {}).get("receipt", self.receipt)


@contextmanager
def _client(
    server: str | None,
    api_key: str | None,
    config_file: Path | None,
    overrides: list[str] | None,
    values: dict[str, Any],
) -> Iterator["ChatClient"]:
    from chiasm.cli.client import ChatClient

    if server is not None:
        yield ChatClient(server, api_key)
        return
    own = {
        "gateway__host": "127.0.0.1",
        "gateway__port": 0,
        "gateway__api_keys": (),
        "observability__log_level": "error",
    }
    settings = resolved(config_file, overrides, **values, **own).settings
    from chiasm.launch.local import background_server
    from chiasm.observability.logs import configure_logging

    configure_logging(settings.observability.log_level)
    loading = LoadingLine()
    with loading as progress, background_server(settings, progress) as started:
        loading.__exit__()
        yield ChatClient(started.address)


def _picture(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": _url(name)}}


def _video(name: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": _url(name)}}


def _url(name: str) -> str:
    return name if name.startswith(_URL_SCHEMES) else _data_url(name)


def _data_url(name: str) -> str:
    import base64
    import mimetypes

    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise typer.BadParameter(
            f"Cannot read {name}: {error.strerror}. The question comes last, in quotes."
        ) from error
    label = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"data:{label};base64,{base64.b64encode(data).decode()}"


def _fetching(pictures: list[str]) -> dict[str, Any]:
    """Let an engine of our own fetch what was named on the command line, from public addresses."""
    from urllib.parse import urlsplit

    urls = [urlsplit(picture) for picture in pictures if picture.startswith(("http://", "https://"))]
    if not urls:
        return {}
    hosts = tuple(sorted({url.hostname for url in urls if url.hostname}))
    return {"media__allowed_domains": hosts, "media__allow_http": any(url.scheme == "http" for url in urls)}


def _print_stages(receipt: dict[str, Any] | None) -> None:
    if receipt is None:
        typer.echo("The server sent no receipt; it is not Chiasm.", err=True)
        return
    from rich.console import Console
    from rich.table import Table

    total_s = receipt["ttft_s"]
    table = Table(box=None, header_style="bold")
    table.add_column("stage")
    table.add_column("ms", justify="right")
    table.add_column("of time to first token")
    for stage, seconds in [*receipt["stages_s"].items(), ("unaccounted", receipt["unaccounted_s"])]:
        share = seconds / total_s if total_s else 0.0
        table.add_row(stage, f"{seconds * 1e3:.2f}", f"{share:4.0%} " + "#" * round(share * 40))
    table.add_section()
    table.add_row("time to first token", f"{total_s * 1e3:.2f}", style="bold")
    table.add_row("decode", f"{receipt['decode_s'] * 1e3:.2f}", f"{receipt['num_output_tokens']} tokens")
    Console().print(table)
    if route := receipt.get("route"):
        typer.echo(_route_words(route))


def _route_words(route: dict[str, Any]) -> str:
    """The way a request took through a fleet, with every attempt in order."""
    attempts = ", ".join(
        f"{one['stage']} by {one['worker']}" + ("" if one["outcome"] == "ok" else f" failed ({one['outcome']})")
        for one in route["attempts"]
    )
    reason = f"\n      {route['reason']}" if route["reason"] else ""
    return f"way:  {route['path']}, policy {route['policy']}; {attempts}{reason}"
