"""`chiasm worker`."""

import sys
import time
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import LoadingLine
from chiasm.cli.process import restart_for_arithmetic

if TYPE_CHECKING:
    from chiasm.launch.processes.specs import WorkerSpec
    from chiasm.settings import Settings

_ROLES = ("encode", "prefill", "decode")


def worker(  # noqa: PLR0913 - one parameter is one option
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL_DIR]", help="Hugging Face directory; none: the packaged tiny model."),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="encode, prefill or decode; may be repeated. None: all three.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in receipts and metrics.", show_default="its roles")] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="'unix:/path' or 'http://host:port'; none: a socket in routing.directory.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="embedded, or vllm for a server of vLLM's.", metavar="embedded|vllm", show_default="embedded"
        ),
    ] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Start one worker by hand, for a server that knows its address or watches the folder that it registers in.

    Try, in three terminals:

      chiasm worker --role encode --set routing.directory=/run/user/1000/chiasm

      chiasm worker --role prefill --role decode --set routing.directory=/run/user/1000/chiasm

      chiasm serve --topology e-pd --encoders 0 --prefills 0 --set routing.directory=/run/user/1000/chiasm

    On another host, with a secret that server and workers share:

      chiasm worker --role encode --address http://10.0.0.7:9001 --set transfer.connector=tcp \
--set transfer.host=10.0.0.7 --set routing.worker_token=SECRET

    A server of vLLM's, which says what to write into the workers' file of `chiasm serve --engine vllm --workers FILE`:

      chiasm worker --engine vllm --role encode --address http://127.0.0.1:9001 --set vllm.python=/opt/vllm/bin/python
    """
    restart_for_arithmetic()
    settings = resolved(config_file, overrides, engine__model=model, engine__kind=engine).settings
    from chiasm.errors import InvalidSettingError
    from chiasm.launch.processes.specs import spec_by_hand

    if settings.engine.kind == "vllm" and not address:
        raise InvalidSettingError(
            "A vLLM server does not register in a folder", hint="Give --address, and list it in the workers' file"
        )
    _serve(settings, spec_by_hand(settings.routing, role or _ROLES, name, address), as_json=json)


def _serve(settings: "Settings", spec: "WorkerSpec", *, as_json: bool) -> None:
    from chiasm.launch.vllm.by_hand import listed, serve_vllm_worker
    from chiasm.launch.worker import serve_worker
    from chiasm.observability.logs import configure_logging

    configure_logging(settings.observability.log_level, settings.observability.log_format)
    started_s = time.perf_counter()
    loading = LoadingLine()

    def on_ready(bound: str) -> None:
        loading.__exit__()
        took_s = time.perf_counter() - started_s
        if as_json:
            typer.echo(dumps({"address": bound, "name": spec.name, "roles": spec.roles, "start_s": round(took_s, 3)}))
        else:
            typer.echo(f"Worker {spec.name} ({', '.join(spec.roles)}) listens on {bound} (after {took_s:.1f} s)")
            if settings.engine.kind == "vllm":
                typer.echo(f"\nFor the gateway's workers' file:\n\n{listed(spec, settings)}")
        sys.stdout.flush()

    run = serve_vllm_worker if settings.engine.kind == "vllm" else serve_worker
    with loading as progress:
        run(settings, spec, progress, on_ready)
