"""`chiasm advise`: whether to split the encoder off, and into what."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.files import check_folders, write_file
from chiasm.cli.options import Json
from chiasm.cli.printing import busy_line, print_json
from chiasm.cli.workload import CalibrationFile, Described, calibration_of, describes_traffic

if TYPE_CHECKING:
    from chiasm.advisor.advice import Advice
    from chiasm.advisor.question import Question
    from chiasm.simulator.calibration import Calibration


class AimName(StrEnum):
    """The choices of an option."""

    TTFT = "ttft"
    E2EL = "e2el"
    GOODPUT = "goodput"


@describes_traffic(requests=1000)
def advise(  # noqa: PLR0913 - one parameter is one option
    calibration: CalibrationFile,
    described: Described,
    devices: Annotated[int, typer.Option(min=1, max=1000, help="Devices to divide: GPUs, or cores.")] = 2,
    encoder_cost: Annotated[
        float, typer.Option(min=0.01, max=100, help="Of a device for encoders alone, in units of one of --devices.")
    ] = 1.0,
    encoder_factor: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1000,
            help="How many times longer the vision tower takes there, than on an encoder "
            "with a device like the others.",
        ),
    ] = 1.0,
    kv_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="What an encoder beside an engine, on its device, leaves of its room for "
            "contexts; `chiasm plan fit` says how large that is.",
        ),
    ] = 1.0,
    aim: Annotated[
        AimName | None,
        typer.Option(
            help="ttft: mean time to the first token; e2el: to the last; goodput: requests within both SLOs for the "
            "cost. None: goodput where an SLO is given, else ttft.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not look for changes that would change the answer.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the advice with all its numbers to a file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write it as a page with charts.")] = None,
    json: Json = False,
) -> None:
    """Say whether splitting the encoder off would pay on this traffic, and why.

    Fleets of the same number of devices are simulated with the same requests, several times over. The answer may be
    to split nothing, and it may be that the numbers do not tell: then it says what to measure.

    Try:

      chiasm advise --calibration costs.json --devices 4 --images 5 --rate 2 --text-share 0.5

      chiasm advise --calibration costs.json --devices 2 --images 1 --osl 512 --slo-ttft-ms 300 --slo-tpot-ms 20

      chiasm advise --calibration costs.json --devices 4 --trace trace.jsonl --slo-ttft-ms 500

      chiasm advise --calibration costs.json --devices 4 --images 5 --encoder-cost 0.3 --encoder-factor 2
    """
    from chiasm.advisor.question import Question, Tier

    check_folders(markdown, html)
    if aim is AimName.GOODPUT and not described.has_slo:
        raise typer.BadParameter("--aim goodput needs --slo-ttft-ms, --slo-tpot-ms, or both")
    seen = described.seen()
    traffic = described.traffic(seen)
    question = Question(
        num_devices=devices,
        tier=Tier(cost=encoder_cost, factor=encoder_factor, kv_share=kv_share),
        traffic=traffic,
        trace=seen,
        aim=aim.value if aim is not None else ("goodput" if described.has_slo else "ttft"),
        objective=described.objective,
        is_one_host=described.one_host,
        tries_changes=not quick,
    )
    advice = _advice(question, calibration_of(calibration))
    if markdown is not None:
        from chiasm.advisor.page import markdown_of

        write_file(markdown, markdown_of(question, advice))
    if html is not None:
        from chiasm.advisor.html import html_of

        write_file(html, html_of(question, advice))
    if json:
        print_json(advice)
    else:
        _print(question, advice)


def _advice(question: "Question", costs: "Calibration") -> "Advice":
    """Ask, and say on standard error what is being simulated."""
    from chiasm.advisor.advice import advise as asked

    with busy_line("Simulating") as say:
        return asked(question, costs, say)


def _print(question: "Question", advice: "Advice") -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from chiasm.advisor.page import markdown_of

    Console().print(Markdown(markdown_of(question, advice)))
