"""`chiasm profile`: measured stage costs, for simulate and advise."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.files import check_folders
from chiasm.cli.options import Json
from chiasm.cli.printing import print_json, steps_bar
from chiasm.cli.process import restart_for_arithmetic
from chiasm.errors import InvalidSettingError

if TYPE_CHECKING:
    from rich.console import Console

    from chiasm.advisor.profile.asking import Asks
    from chiasm.advisor.profile.processes import Processes
    from chiasm.advisor.profile.runs import Profile, Runs

_NO_PICTURES = "The model takes no pictures"


def profile(  # noqa: PLR0913 - one parameter is one option
    server: Annotated[
        str,
        typer.Argument(
            metavar="[URL|MODEL]",
            help="A running server of Chiasm's, or a model directory: then its engine alone, in this process.",
        ),
    ] = "http://127.0.0.1:8000",
    out: Annotated[Path, typer.Option(help="File to write the calibration to.")] = Path("costs.json"),
    api_key: Annotated[
        str | None, typer.Option(envvar="CHIASM_API_KEY", help="The server's API key.", show_default=False)
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Times that each size is asked.")] = 3,
    max_running: Annotated[int, typer.Option(min=1, max=4096, help="The server's engine.max_running.")] = 16,
    media_threads: Annotated[int, typer.Option(min=1, max=4096, help="The server's media.decode_threads.")] = 2,
    kv_tokens: Annotated[int, typer.Option(min=0, help="Tokens of context that an engine holds; 0: no limit.")] = 0,
    json: Json = False,
) -> None:
    """Measure what stages cost on a running server or an engine, in a minute or a few, and write it to a file.

    The server should have nothing else to do. On its own machine, what work takes of the cores is measured
    too. Work of one worker is best seen where there is only one; what a transfer costs is only seen where encoders are
    apart: profile a server with --topology e-pd for that, on cores or devices like those to be planned for.

    Try:

      chiasm serve --topology e-pd &

      chiasm profile --out costs.json

      chiasm profile ./my-model --out costs.json

      chiasm advise --calibration costs.json --images 4 --rate 2
    """
    from chiasm.simulator.calibration import save_calibration

    check_folders(out)
    limits = {"max_running": max_running, "media_threads": media_threads, "kv_tokens": kv_tokens}
    if Path(server).is_dir():
        restart_for_arithmetic()
        found = _profiled_engine(Path(server), repeats, limits)
    else:
        found = asyncio.run(_profiled(server, api_key, repeats, limits))
    save_calibration(found.calibration, out)
    if json:
        print_json(found)
    else:
        _print(found, out)


async def _profiled(server: str, api_key: str | None, repeats: int, limits: dict[str, int]) -> "Profile":
    """Run; on a terminal, says on standard error how far it is."""
    from chiasm.advisor.profile.asking import Asking
    from chiasm.advisor.profile.processes import processes_of
    from chiasm.bench.server import ServerView
    from chiasm.bench.target import parse_target

    if server.startswith((".", "/", "~")):
        raise InvalidSettingError(
            f"There is no model directory '{server}'", hint="Name one, or a running server's URL: http://host:port"
        )
    target = parse_target(server, api_key)
    async with ServerView(target) as view:
        runs = await _run(Asking(view), repeats, processes_of(target))
    return _profile(runs, "chiasm profile", repeats, limits)


def _profiled_engine(model: Path, repeats: int, limits: dict[str, int]) -> "Profile":
    """Likewise, of an engine in this process, which is loaded where Ctrl+C ends it at once."""
    from chiasm import LLM
    from chiasm.advisor.profile.engine import EngineAsking
    from chiasm.settings import resolve

    values = {
        "engine.model": str(model),
        "engine.max_running": limits["max_running"],
        "media.decode_threads": limits["media_threads"],
    }
    with LLM(settings=resolve(values=values).settings) as engine:
        runs = asyncio.run(_run(EngineAsking(engine), repeats, None))
    return _profile(runs, "chiasm profile of an engine", repeats, limits)


async def _run(asking: "Asks", repeats: int, processes: "Processes | None") -> "Runs":
    from chiasm.advisor.profile.runs import Runs

    with steps_bar() as bar:
        task = bar.add_task("Starting")

        def on_run(what: str, num_done: int, num_all: int) -> None:
            bar.update(task, description=what, completed=num_done, total=num_all)

        runs = Runs(asking, repeats, on_run, processes)
        await runs.run()
    return runs


def _profile(runs: "Runs", source: str, repeats: int, limits: dict[str, int]) -> "Profile":
    from chiasm.advisor.profile.runs import profile_of

    return profile_of(runs, f"{source}, {repeats} repeats", **limits)


def _print(found: "Profile", out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("Stage", box=None, pad_edge=False)
    for name in ("fixed ms", "per unit µs", "points", "mean error"):
        table.add_column(name, justify="right")
    for stage, fit in found.fits.items():
        cost = fit.cost
        table.add_row(
            stage, f"{1e3 * cost.fixed_s:.2f}", f"{1e6 * cost.per_unit_s:.3f}", str(fit.num_points), f"{fit.error:.0%}"
        )
    console = Console()
    console.print(table)
    console.print(f"Units: pixels of media, tokens elsewhere, answers side by side of step. Written to {out}")
    after, stall_s = found.calibration.after_prompt, found.calibration.stall_s
    stall = f"Running answers stand still for {1e3 * stall_s:.1f} ms when a request comes, besides its prompt."
    console.print(
        f"After a prompt's first token: {1e3 * after.fixed_s:.2f} ms and {1e6 * after.per_unit_s:.2f} µs for each of "
        f"its tokens. {stall if stall_s else 'That running answers stand still when a request comes was not seen.'}"
    )
    if "encode" not in found.fits:
        why = "The server's receipts do not say what encoding takes" if found.takes_pictures else _NO_PICTURES
        console.print(f"{why}: the file is for traffic of texts alone.")
        _print_sharing(found, console)
        return
    _print_beside(found, console)
    if "transfer" not in found.fits:
        console.print("Transfers were not seen and count as free: profile a server with --topology e-pd for them.")


def _print_beside(found: "Profile", console: "Console") -> None:
    what = {
        "media_by_engine": "media work beside steps",
        "engine_by_media": "steps beside media work",
        "step_by_encode": "steps beside an encoder",
        "prefill_by_encoder": "prompts beside an encoder",
        "encode_by_engine": "encoding beside steps",
    }
    for name in found.beside.rounds:
        if name in what:
            seen = found.beside.slowdown(name)
            interval = f"95 % interval: {seen.low:.0%} to {seen.high:.0%}"
            said = f"{max(seen.taken, 0.0):.0%} slower ({interval})"
            console.print(
                f"{what[name]}: {said if seen.is_measurable else f'not measurable, taken as none ({interval})'}"
            )
    if found.beside.num_workers > 1:
        console.print(
            f"Work beside steps was not measured: {found.beside.num_workers} workers answered. Profile a server with "
            "one (--workers 1) for it."
        )
    elif "encode_parts" in found.beside.rounds:
        console.print(f"A batch of pictures gives way to texts in {found.beside.encode_parts} parts.")
    _print_sharing(found, console)


def _print_sharing(found: "Profile", console: "Console") -> None:
    sharing = found.calibration.sharing
    if sharing is None:
        console.print("What work takes of cores is not known: no server's processes are all seen from here.")
        return
    request_s, step_s = found.calibration.request.fixed_s, found.calibration.step.at(1)
    console.print(
        f"On {sharing.num_cores:.0f} cores: {', '.join(sharing.processes)}. In use during a request's own "
        f"{1e3 * request_s:.1f} ms: {sharing.request:.2f}; encoding: {sharing.encode:.2f}; prompts: "
        f"{sharing.prefill:.2f}; a step of one answer: {sharing.step_cpu_s(1) / step_s if step_s else 0.0:.2f}."
    )
    if found.contention:
        least, most = min(found.contention), max(found.contention)
        taken = f"{sharing.contention:.0%} slower, runs: {least:.0%} to {most:.0%}"
        console.print(f"Steps beside those of another worker, besides what sharing cores explains: {taken}")
