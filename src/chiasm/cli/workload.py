"""Options that describe traffic, for commands that think about it instead of sending it."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chiasm.cli.commands import only_with, only_without

if TYPE_CHECKING:
    from chiasm.simulator.calibration import Calibration
    from chiasm.simulator.summary import Objective
    from chiasm.simulator.traces.trace import Trace
    from chiasm.simulator.traffic import RequestClass, Traffic

_MAX_TOKENS = 100_000_000
_MEANS = ("--rate", "--images", "--text-tokens", "--osl", "--text-share", "--repeat-share", "--requests")
"""Of traffic that is described by options."""

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
Rate = Annotated[float, typer.Option(min=1e-6, max=1e6, help="Requests a second.")]
Images = Annotated[int, typer.Option(min=0, max=10_000, help="Pictures in a request that has any.")]
Pixels = Annotated[int, typer.Option(min=1, max=10**12, help="Pixels of a picture, width x height.")]
VisualTokens = Annotated[
    int,
    typer.Option(min=1, max=_MAX_TOKENS, help="Visual tokens of a picture; `chiasm tokens` counts them."),
]
TextTokens = Annotated[int, typer.Option(min=1, max=_MAX_TOKENS, help="Tokens of a prompt besides its pictures.")]
OutputTokens = Annotated[
    int, typer.Option("--osl", min=1, max=_MAX_TOKENS, help="Tokens of an answer (output sequence length).")
]
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


@dataclass(frozen=True, kw_only=True)
class Described:
    """The options, as given. A command gets all of them as one parameter by `describes_traffic`."""

    traffic_file: TrafficFile = None
    trace: TraceFile = None
    speed: Speed = 1.0
    rate: Rate = 1.0
    images: Images = 1
    pixels: Pixels = 448 * 448
    visual_tokens: VisualTokens = 256
    text_tokens: TextTokens = 64
    output_tokens: OutputTokens = 128
    text_share: TextShare = 0.0
    repeat_share: RepeatShare = 0.0
    requests: NumRequests = 1000
    seed: Seed = 0
    one_host: OneHost = False
    slo_ttft_ms: SloTtft = None
    slo_tpot_ms: SloTpot = None

    @property
    def has_slo(self) -> bool:
        """Whether anything is demanded."""
        return self.slo_ttft_ms is not None or self.slo_tpot_ms is not None

    @property
    def objective(self) -> "Objective":
        """What a request has to meet, as far as it is demanded."""
        from chiasm.simulator.summary import Objective

        infinite = float("inf")
        return Objective(
            ttft_s=infinite if self.slo_ttft_ms is None else self.slo_ttft_ms / 1e3,
            tpot_s=infinite if self.slo_tpot_ms is None else self.slo_tpot_ms / 1e3,
        )

    def seen(self) -> "Trace | None":
        """Read the trace, if there is one."""
        from chiasm.simulator.traces.lines import TracePicture
        from chiasm.simulator.traces.trace import read_trace

        if self.trace is None:
            return None
        usual = TracePicture(pixels=self.pixels, tokens=self.visual_tokens)
        return read_trace(self.trace, usual, speed=self.speed)

    def traffic(self, seen: "Trace | None") -> "Traffic":
        """Traffic that is like a trace, or else as a file describes it, or else as the options do."""
        import msgspec

        from chiasm.errors import InvalidSettingError
        from chiasm.simulator.traffic import Traffic

        if seen is not None:
            return seen.likeness
        if self.traffic_file is None:
            return Traffic(classes=self._classes(), rate_per_s=self.rate, num_requests=self.requests, seed=self.seed)
        try:
            return msgspec.json.decode(self.traffic_file.read_bytes(), type=Traffic)
        except OSError as error:
            raise InvalidSettingError(f"'{self.traffic_file}' cannot be read: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise InvalidSettingError(f"'{self.traffic_file}' does not describe traffic: {error}") from error

    def _classes(self) -> "tuple[RequestClass, ...]":
        from chiasm.simulator.traffic import RequestClass

        text = RequestClass(
            name="text",
            share=self.text_share or 1.0,
            text_tokens=self.text_tokens,
            output_tokens=self.output_tokens,
        )
        if self.images == 0 or self.text_share == 1.0:
            return (text,)
        images = RequestClass(
            name="images",
            share=1.0 - self.text_share,
            num_images=self.images,
            num_pixels=self.pixels,
            visual_tokens=self.visual_tokens,
            text_tokens=self.text_tokens,
            output_tokens=self.output_tokens,
            repeat_share=self.repeat_share,
        )
        return (images, text) if self.text_share else (images,)


def describes_traffic(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all options of `Described` in the place of its parameter `described`, with other defaults."""
    usual = replace(Described(), **defaults)
    mine = {
        one.name: Parameter(one.name, Parameter.KEYWORD_ONLY, default=getattr(usual, one.name), annotation=one.type)
        for one in fields(Described)
    }

    def given(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**options: Any) -> None:
            described = Described(**{name: options.pop(name) for name in mine})
            command(described=described, **options)

        seen = signature(command)
        own = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in seen.parameters.values()]
        shown = [one for each in own for one in (mine.values() if each.name == "described" else [each])]
        with_options.__dict__["__signature__"] = seen.replace(parameters=shown)
        with_options.__annotations__ = {one.name: one.annotation for one in shown} | {"return": None}
        for rule in _RULES:
            rule(with_options)
        return with_options

    return given


_RULES = (
    only_without("--trace", "--traffic", *_MEANS),
    only_without("--traffic", "--pixels", "--visual-tokens", *_MEANS),
    only_with("--trace", "--speed"),
)


def calibration_of(path: Path) -> "Calibration":
    """Read the calibration that an option names.

    Raises:
        InvalidSettingError: As `load_calibration` says, or a language model costs nothing in it.
    """
    from chiasm.errors import InvalidSettingError
    from chiasm.simulator.calibration import load_calibration

    found = load_calibration(path)
    if not (found.prefill_s(1) and found.step_s(1)):
        raise InvalidSettingError(
            f"Prompts or decode steps cost nothing in '{path}': there is nothing to simulate",
            hint="Its 'prefill' and 'step' say what they cost; `chiasm profile` measures them.",
        )
    return found
