"""The options of `chiasm bench`, by the panels of its help."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

_load = partial(typer.Option, rich_help_panel="What is sent when")
_class = partial(typer.Option, rich_help_panel="What requests are like")
_mode = partial(typer.Option, rich_help_panel="Other ways to measure")
_client = partial(typer.Option, rich_help_panel="Client and results")

Url = Annotated[str, typer.Argument(metavar="URL", help="Server with an OpenAI API, as http://127.0.0.1:8000.")]

Rate = Annotated[
    float | None,
    _load(min=1e-3, help="Mean requests per second; where --goodput starts. None: 2.", show_default=False),
]
Requests = Annotated[int, _load(min=1, help="Requests that are measured, per run.")]
Warmup = Annotated[int | None, _load(min=0, help="Requests before them. None: a tenth.", show_default=False)]
Cooldown = Annotated[
    int | None, _load(min=0, help="Requests after them, which keep the load up. None: a tenth.", show_default=False)
]
Arrivals = Annotated[Literal["constant", "poisson", "gamma"], _load(help="How requests follow each other.")]
GammaShape = Annotated[float, _load(min=1e-3, help="Of gamma arrivals: below 1 is burstier than Poisson.")]
Trace = Annotated[Path | None, _load(help="JSONL file whose times and lengths are sent instead.", show_default=False)]
Speed = Annotated[float, _load(min=1e-3, help="How many times as fast to send a trace.")]
Repeats = Annotated[int, _load(min=1, max=1000, help="Runs, each with another seed; several give intervals.")]
Seed = Annotated[str, _load(help="Arrivals and payloads follow from it.")]

Mix = Annotated[Path | None, _class(help="TOML file with several classes of requests instead.", show_default=False)]
RequestKind = Annotated[Literal["chat", "completions", "embeddings", "rerank"], _class(help="Which API.")]
TextTokens = Annotated[int, _class(min=1, help="Words of text, about a token each.")]
Texts = Annotated[int, _class(min=1, help="Inputs of embeddings, documents of rerank.")]
OutputTokens = Annotated[int, _class(min=1, help="Length of answers; exact where the server can.")]
Images = Annotated[int, _class(min=0, help="Pictures in each request.")]
ImageSize = Annotated[str, _class(metavar="WxH", help="Their size in pixels.")]
ImageTokens = Annotated[
    int | None, _class(min=1, help="Their size by a token budget, 1024 pixels each.", show_default=False)
]
ImageFormat = Annotated[Literal["jpeg", "png", "webp"], _class(help="Their format.")]
ImageReuse = Annotated[float, _class(min=0, max=1, help="Probability that a picture was sent before.")]
Videos = Annotated[int, _class(min=0, help="Videos in each request; need the extra 'video'.")]
VideoSize = Annotated[str, _class(metavar="WxH", help="Their size in pixels.")]
VideoSeconds = Annotated[float, _class(min=0.1, max=600, help="Their length, 24 frames a second.")]

Peak = Annotated[
    int | None,
    _mode(min=1, metavar="OPEN", help="Peak throughput with so many requests open.", show_default=False),
]
FindGoodput = Annotated[
    bool, _mode("--goodput", help="Search the highest rate at which 9 of 10 requests meet both limits.")
]
SloTtft = Annotated[float | None, _mode(min=0, help="Longest time to the first token.", show_default=False)]
SloTpot = Annotated[float | None, _mode(min=0, help="Longest time per further token.", show_default=False)]
Devices = Annotated[int, _mode(min=1, help="Cores or GPUs that serve, for goodput per device.")]

Timeout = Annotated[float, _client(min=0.1, help="Seconds after which a request is given up.")]
Processes = Annotated[int, _client(min=0, max=64, help="Client processes; 0: half of the cores.")]
ApiKey = Annotated[str | None, _client(envvar="CHIASM_API_KEY", help="Key of the server.", show_default=False)]
Model = Annotated[str | None, _client(help="Model's name. None: the first that is listed.", show_default=False)]
Output = Annotated[
    Path | None, _client(help="New or empty folder for schedules, records and summaries.", show_default=False)
]
