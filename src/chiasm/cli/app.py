"""`chiasm`: which subcommands there are, and how failures are shown."""

import errno
import sys
from typing import Annotated

import typer

from chiasm.cli.adapters import adapters
from chiasm.cli.advise import advise
from chiasm.cli.ask import ask
from chiasm.cli.bench.group import bench
from chiasm.cli.commands import Commands, Root
from chiasm.cli.config import config
from chiasm.cli.deploy import deploy
from chiasm.cli.doctor import doctor
from chiasm.cli.faults import faults
from chiasm.cli.fleet import fleet
from chiasm.cli.keys import keys
from chiasm.cli.media import media
from chiasm.cli.memory import memory
from chiasm.cli.parity import parity
from chiasm.cli.plan import plan
from chiasm.cli.plugin import plugin
from chiasm.cli.printing import FAILURE, close_output, report_error
from chiasm.cli.profile import profile
from chiasm.cli.report import report
from chiasm.cli.serve import serve
from chiasm.cli.simulate import simulate
from chiasm.cli.tokens import tokens
from chiasm.cli.trace import trace
from chiasm.cli.version import print_version, version
from chiasm.cli.worker import worker
from chiasm.errors import ChiasmError, EngineStartError
from chiasm.settings.process import is_refused_by_system

_HELP = """Serve vision-language models, and see where the time goes.

First steps:

  chiasm ask picture.png "What is this?"   answer one question, no server

  chiasm serve                             the packaged tiny model, port 8000

  chiasm serve ./my-model --port 9000      a Hugging Face directory of yours

  chiasm doctor                            what works here, how to fix the rest
"""

app = Commands(
    name="chiasm", cls=Root, help=_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    pass


app.command()(serve)
app.command()(worker)
app.command()(ask)
app.command()(tokens)
app.command()(doctor)
app.command()(faults)
app.command()(parity)
app.command()(profile)
app.command()(simulate)
app.command()(advise)
app.command()(memory)
app.command()(report)
app.command()(version)
app.add_typer(bench, name="bench")
app.add_typer(adapters, name="adapters")
app.add_typer(config, name="config")
app.add_typer(deploy, name="deploy")
app.add_typer(fleet, name="fleet")
app.add_typer(keys, name="keys")
app.add_typer(media, name="media")
app.add_typer(plan, name="plan")
app.add_typer(trace, name="trace")
app.add_typer(plugin, name="plugin")


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Run the command line. Expected failures are one line and a hint, with status 2 for settings and 1 for others."""
    try:
        app()
    except ChiasmError as error:
        sys.exit(report_error(error))
    except (RuntimeError, OSError) as error:
        if is_refused_by_system(error):
            sys.exit(report_error(_no_process()))
        if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
            raise
        close_output()
        typer.secho(f"Error: The output cannot be written: {error.strerror}", fg=typer.colors.RED, err=True)
        sys.exit(FAILURE)


def _no_process() -> ChiasmError:
    return EngineStartError(
        "The system starts no further thread or process",
        hint="Raise the limit: 'ulimit -u', --pids-limit of a container, TasksMax= of a systemd unit",
    )
