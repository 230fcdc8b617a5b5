"""`chiasm bench load`: load on a server, and what it came to."""

from typing import TYPE_CHECKING

import typer

from chiasm.cli.bench import options as o
from chiasm.cli.commands import only_with, only_without
from chiasm.cli.options import Json

if TYPE_CHECKING:
    from chiasm.bench.metrics.goodput import Objectives

_DEFAULT_RATE_PER_S = 2.0


_CLASS = (
    *("--kind", "--text-tokens", "--texts", "--output-tokens", "--videos", "--video-size", "--video-seconds"),
    *("--images", "--image-size", "--image-tokens", "--image-format", "--image-reuse"),
)


@only_with("--trace", "--speed")
@only_without("--mix", *_CLASS)
@only_without("--trace", "--requests", "--arrivals", "--gamma-shape", "--repeats")
@only_without("--peak", "--arrivals", "--gamma-shape", "--repeats")
@only_without("--goodput", "--repeats")
@only_with("--goodput", "--devices")
def load(  # noqa: PLR0913 - each argument is an option
    url: o.Url,
    rate: o.Rate = None,
    requests: o.Requests = 100,
    warmup: o.Warmup = None,
    cooldown: o.Cooldown = None,
    arrivals: o.Arrivals = "poisson",
    gamma_shape: o.GammaShape = 0.5,
    trace: o.Trace = None,
    speed: o.Speed = 1.0,
    repeats: o.Repeats = 1,
    seed: o.Seed = "0",
    mix: o.Mix = None,
    kind: o.RequestKind = "chat",
    text_tokens: o.TextTokens = 64,
    texts: o.Texts = 1,
    output_tokens: o.OutputTokens = 64,
    images: o.Images = 0,
    image_size: o.ImageSize = "448x448",
    image_tokens: o.ImageTokens = None,
    image_format: o.ImageFormat = "jpeg",
    image_reuse: o.ImageReuse = 0.0,
    videos: o.Videos = 0,
    video_size: o.VideoSize = "448x448",
    video_seconds: o.VideoSeconds = 5.0,
    peak: o.Peak = None,
    goodput: o.FindGoodput = False,
    slo_ttft_ms: o.SloTtft = None,
    slo_tpot_ms: o.SloTpot = None,
    devices: o.Devices = 1,
    timeout: o.Timeout = 120.0,
    processes: o.Processes = 0,
    api_key: o.ApiKey = None,
    model: o.Model = None,
    output: o.Output = None,
    json: Json = False,
) -> None:
    """Put load on a server and report latencies, rates and errors.

    Requests leave at times that were fixed before, whether or not earlier ones have been answered, and latencies count
    from these times. A run that this client held up is called invalid, and one that the server could not keep up with
    unstable. The exit status is 1 when a run is invalid, and when none of several is valid.

    Try:

      chiasm bench http://127.0.0.1:8000 --rate 4 --images 1

      chiasm bench http://127.0.0.1:8000 --rate 4 --repeats 5 --output results

      chiasm bench http://127.0.0.1:8000 --goodput --slo-ttft-ms 500 --slo-tpot-ms 50

      chiasm bench http://127.0.0.1:8000 --peak 32 --kind embeddings
    """
    from chiasm.bench.cell import LoadSpec
    from chiasm.bench.workload.classes import RequestClass, checked, read_mix
    from chiasm.cli.bench.runs import Runs, results_folder

    _check_modes(goodput=goodput, peak=peak, trace=trace is not None, rate=rate)
    limits = _limits(slo_ttft_ms, slo_tpot_ms)
    if goodput and limits is None:
        raise typer.BadParameter("--goodput needs --slo-ttft-ms, --slo-tpot-ms, or both")
    width, height = _size(image_size)
    video_width, video_height = _size(video_size, 16, 4096)
    one = RequestClass(
        kind=kind,
        text_tokens=text_tokens,
        texts=texts,
        output_tokens=output_tokens,
        images=images,
        image_width=width,
        image_height=height,
        image_tokens=image_tokens,
        image_format=image_format,
        image_reuse=image_reuse,
        videos=videos,
        video_width=video_width,
        video_height=video_height,
        video_seconds=video_seconds,
    )
    spec = LoadSpec(
        classes=checked([one]) if mix is None else read_mix(mix),
        pattern=arrivals,
        gamma_shape=gamma_shape,
        num_requests=requests,
        num_warmup=warmup,
        num_cooldown=cooldown,
        seed=seed,
        timeout_s=timeout,
        num_processes=processes,
        limits=limits,
    )
    with results_folder(output) as folder:
        runs = Runs(folder, spec, url=url, api_key=api_key, model=model, is_json=json)
        if goodput:
            runs.goodput(rate or _DEFAULT_RATE_PER_S, devices)
        elif peak is not None:
            runs.peak(peak)
        elif trace is not None:
            runs.replay(trace, speed)
        else:
            runs.repeats(rate or _DEFAULT_RATE_PER_S, repeats)


def _check_modes(*, goodput: bool, peak: int | None, trace: bool, rate: float | None) -> None:
    if goodput + (peak is not None) + trace > 1:
        raise typer.BadParameter("--goodput, --peak and --trace are different ways to measure; choose one")
    if rate is not None and (trace or peak is not None):
        raise typer.BadParameter("Only an open loop has a rate; --speed makes a trace faster")


def _limits(ttft_ms: float | None, tpot_ms: float | None) -> "Objectives | None":
    from chiasm.bench.metrics.goodput import Objectives

    if ttft_ms is None and tpot_ms is None:
        return None
    return Objectives(
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3, tpot_s=None if tpot_ms is None else tpot_ms / 1e3
    )


def _size(text: str, least: int = 8, most: int = 16_384) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if not (width.isascii() and width.isdigit() and height.isascii() and height.isdigit()):
        raise typer.BadParameter(f"'{text}' is no size; write 640x480")
    if not all(least <= int(side[:6]) <= most for side in (width, height)):
        raise typer.BadParameter(f"'{text}': sides are from {least} to {most} pixels")
    return int(width), int(height)
