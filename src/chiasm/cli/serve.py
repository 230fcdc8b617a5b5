"""`chiasm serve`."""

import re
import sys
import time
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.counts import check_counts
from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import LoadingLine
from chiasm.cli.process import restart_for_arithmetic

if TYPE_CHECKING:
    from chiasm.launch.cluster.serve import ClusterServer
    from chiasm.launch.local import LocalServer
    from chiasm.settings import Settings

    Served = LocalServer | ClusterServer


def serve(  # noqa: PLR0913 - one parameter is one option
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL_DIR]", help="Hugging Face directory; none: the packaged tiny model."),
    ] = None,
    model_option: Annotated[
        str | None, typer.Option("--model", metavar="MODEL_DIR", help="The same, as an option.", show_default=False)
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", show_default="8000")] = None,
    engine: Annotated[
        str | None, typer.Option(help="embedded, or vllm for servers of vLLM.", show_default="embedded")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="local, agg, auto, e-pd or e-p-d; see below.", show_default="local")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|FILE",
            help="Processes of agg and auto; or a TOML file naming vLLM servers that run already.",
            show_default="2",
        ),
    ] = None,
    encoders: Annotated[int | None, typer.Option(help="Encoders of e-pd and e-p-d.", show_default="1")] = None,
    prefills: Annotated[int | None, typer.Option(help="Prefill workers of e-pd and e-p-d.", show_default="1")] = None,
    decodes: Annotated[int | None, typer.Option(help="Decode workers of e-p-d.", show_default="1")] = None,
    costs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File of `chiasm profile`: stage costs to predict with from the first request on.",
            show_default="made-up ones",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ray|ray://HOST:PORT",
            help="Place gateway and workers on the nodes of a Ray cluster.",
            show_default="this machine",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter", metavar="NAME=DIR", help="A LoRA adapter that clients may name as their model; repeatable."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="generate, embed, classify, token_classify, late_interaction or yes_no.",
            show_default="what the model's files say",
        ),
    ] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None,
    json: Json = False,
    take_over: Annotated[str | None, typer.Option(hidden=True)] = None,  # for successors of this server
) -> None:
    """Serve a model over the OpenAI API until SIGTERM or Ctrl+C; running requests finish first.

    Topologies: 'local' has everything in one process. 'agg' has several whole workers. 'e-pd' gives pictures to
    encoders of their own and text to workers that never encode unless all encoders fail; 'e-p-d' also splits prefill
    from decode. 'auto' has whole workers that encode for each other when that is predicted to be faster.

    Try:

      chiasm serve

      chiasm serve ./Qwen2.5-VL-3B-Instruct --port 9000 --set engine.max_running=8

      chiasm serve ./all-MiniLM-L6-v2                (embeddings and scores; see docs/pooling.md)

      chiasm serve ./Qwen3-Reranker-0.6B --task yes_no

      chiasm serve ./Qwen2.5-VL-3B-Instruct --adapter support=./adapters/support-v3

      chiasm serve --topology auto --costs costs.json    (see docs/topologies.md)

      chiasm serve --topology e-p-d --cluster ray    (see docs/guides/ray.md)

      chiasm serve --engine vllm --model ./Qwen2.5-VL-3B-Instruct --topology e-pd --set vllm.python=/opt/vllm/bin/python

      chiasm serve --engine vllm --model ./Qwen2.5-VL-3B-Instruct --topology e-pd --workers workers.toml

      chiasm serve --set 'gateway.api_keys=["secret"]' --host 0.0.0.0
    """
    if model and model_option and model != model_option:
        raise typer.BadParameter(f"Two models are named, '{model}' and '{model_option}'; name one")
    restart_for_arithmetic()
    is_number = workers is not None and re.fullmatch("-?[0-9]{1,9}", workers) is not None
    settings = resolved(
        config_file,
        overrides,
        engine__model=model or model_option,
        engine__kind=engine,
        gateway__host=host,
        gateway__port=port,
        pooling__task=task,
        adapters__preload=adapter,
        cluster__address=cluster,
        routing__topology=topology,
        routing__workers=int(workers) if workers and is_number else None,
        vllm__workers_file=workers if workers and not is_number else None,
        routing__encoders=encoders,
        routing__prefills=prefills,
        routing__decodes=decodes,
        routing__costs=costs,
        observability__log_level=log_level,
    ).settings
    numbers = {"workers": settings.routing.workers if is_number else None}
    check_counts(settings, numbers | {"encoders": encoders, "prefills": prefills, "decodes": decodes})
    _serve(settings, as_json=json, take_over=take_over)


def _serve(settings: "Settings", *, as_json: bool, take_over: str | None) -> None:
    from chiasm.launch.cluster.serve import serve_on_cluster
    from chiasm.launch.local import serve as serve_here
    from chiasm.launch.succession.handover import inherited
    from chiasm.observability.logs import configure_logging

    configure_logging(settings.observability.log_level, settings.observability.log_format)
    started_s = time.perf_counter()
    loading = LoadingLine()

    def on_ready(server: "Served") -> None:
        loading.__exit__()
        took_s = time.perf_counter() - started_s
        if as_json:
            said = {"address": server.address, "model": server.model, "start_s": round(took_s, 3)}
            typer.echo(dumps(said | ({"addresses": server.addresses} if len(server.addresses) > 1 else {})))
        else:
            _print_welcome(server, took_s, has_keys=bool(settings.gateway.api_keys))
        sys.stdout.flush()

    with loading as progress:
        if settings.cluster.address:
            serve_on_cluster(settings, progress, on_ready)
        else:
            serve_here(settings, progress, on_ready, inherited(take_over, settings.gateway) if take_over else None)


def _print_welcome(server: "Served", took_s: float, *, has_keys: bool) -> None:
    typer.echo(f"{server.model} is served on {server.address} (ready after {took_s:.1f} s; Ctrl+C stops it)")
    if further := server.addresses[1:]:
        typer.echo(f"and on {', '.join(further)}")
    if server.tasks:
        _print_pooling(server, has_keys=has_keys)
        return
    key = " --api-key KEY" if has_keys else ""
    typer.echo(f'Try:  chiasm ask --server {server.address}{key} picture.png "What is in the picture?"')
    header = " -H 'Authorization: Bearer KEY'" if has_keys else ""
    body = '{"messages": [{"role": "user", "content": "Hello"}]}'
    typer.echo(f"      curl {server.address}/v1/chat/completions{header} -d '{body}'")


_EXAMPLES = {
    "embed": ("/v1/embeddings", '{"input": "Hello"}'),
    "score": ("/rerank", '{"query": "What is Paris?", "documents": ["A city", "A fish"]}'),
    "classify": ("/classify", '{"input": "Hello"}'),
    "token_embed": ("/pooling", '{"task": "token_embed", "input": "Hello"}'),
    "token_classify": ("/pooling", '{"task": "token_classify", "input": "Hello"}'),
}


def _print_pooling(server: "Served", *, has_keys: bool) -> None:
    header = " -H 'Authorization: Bearer KEY'" if has_keys else ""
    for number, task in enumerate(server.tasks):
        path, body = _EXAMPLES[task]
        typer.echo(f"{'      ' if number else 'Try:  '}curl {server.address}{path}{header} -d '{body}'")
