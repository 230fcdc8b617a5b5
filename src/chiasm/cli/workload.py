"""Options that describe traffic, for commands that think about it instead of sending it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from chiasm.simulator.calibration import Calibration
    from chiasm.simulator.summary import Objective
    from chiasm.simulator.traces.trace import Trace
    from chiasm.simulator.traffic import RequestClass, Traffic

CalibrationFile = Annotated[
    Path, typer.Option("--calibration", help="Measured stage costs, made by `chiasm profile`.", show_default=False)
]
TrafficFile = Annotated[
    Path | None,
    typer.Option("--traffic", help="JSON file that describes the traffic instead of the options below."),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Requests as they came, instead of the options below: a file of `chiasm trace export`, of Mooncake's "
        "form, or AIPerf's profile_export.jsonl. Pictures that a trace only counts have --pixels and --visual-tokens.",
    ),
]
Speed = Annotated[float, typer.Option(min=0.001, max=1000, help="Play a trace so many times as fast.")]
Rate = Annotated[float, typer.Option(min=1e-6, help="Requests a second.")]
Images = Annotated[int, typer.Option(min=0, max=10_000, help="Pictures in a request that has any.")]
Pixels = Annotated[int, typer.Option(min=1, help="Pixels of a picture, width x height.")]
VisualTokens = Annotated[int, typer.Option(min=1, help="Visual tokens of a picture; `chiasm tokens` counts them.")]
TextTokens = Annotated[int, typer.Option(min=1, help="Tokens of a prompt besides its pictures.")]
OutputTokens = Annotated[int, typer.Option("--osl", min=1, help="Tokens of an answer (output sequence length).")]
TextShare = Annotated[float, typer.Option(min=0, max=1, help="Share of requests without pictures.")]
RepeatShare = Annotated[float, typer.Option(min=0, max=1, help="Share of requests about pictures that came before.")]
NumRequests = Annotated[int, typer.Option("--requests", min=20, max=10_000_000, help="Requests to simulate.")]
Seed = Annotated[int, typer.Option(help="Same seed, same requests.")]
OneHost = Annotated[
    bool,
    typer.Option(
        "--one-host",
        help="All workers, the gateway and the client share the cores of one host, as the profile saw it.",
    ),
]
SloTtft = Annotated[
    float | None, typer.Option("--slo-ttft-ms", min=0.001, help="Time to the first token that is still good.")
]
SloTpot = Annotated[
    float | None, typer.Option("--slo-tpot-ms", min=0.001, help="Time per token after it that is still good.")
]


def traffic_of(seen: "Trace | None", file: Path | None, **options: Any) -> "Traffic":
    """Traffic that is like a trace, or else as a file describes it, or else as the options do."""
    import msgspec

    from chiasm.errors import InvalidSettingError
    from chiasm.simulator.traffic import Traffic

    if seen is not None:
        return seen.likeness
    if file is None:
        shared = {name: options[name] for name in ("rate_per_s", "num_requests", "seed")}
        return Traffic(classes=_classes(**{name: options[name] for name in options if name not in shared}), **shared)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Traffic)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidSettingError(f"{file.name} does not describe traffic: {error}") from error


def _classes(*, text_share: float, num_images: int, **options: Any) -> "tuple[RequestClass, ...]":
    from chiasm.simulator.traffic import RequestClass

    common = {name: options[name] for name in ("text_tokens", "output_tokens")}
    text = RequestClass(name="text", share=text_share or 1.0, **common)
    if num_images == 0 or text_share == 1.0:
        return (text,)
    images = RequestClass(name="images", share=1.0 - text_share, num_images=num_images, **options)
    return (images, text) if text_share else (images,)


def trace_of(file: Path | None, *, num_pixels: int, visual_tokens: int, speed: float) -> "Trace | None":
    """The trace that an option names, if it does."""
    from chiasm.simulator.traces.lines import TracePicture
    from chiasm.simulator.traces.trace import read_trace

    if file is None:
        return None
    return read_trace(file, TracePicture(pixels=num_pixels, tokens=visual_tokens), speed=speed)


def calibration_of(path: Path) -> "Calibration":
    """Read the calibration that an option names."""
    from chiasm.simulator.calibration import load_calibration

    return load_calibration(path)


def objective_of(ttft_ms: float | None, tpot_ms: float | None) -> "Objective":
    """What a request has to meet, as far as it is demanded."""
    from chiasm.simulator.summary import Objective

    infinite = float("inf")
    return Objective(
        ttft_s=infinite if ttft_ms is None else ttft_ms / 1e3, tpot_s=infinite if tpot_ms is None else tpot_ms / 1e3
    )
