"""`chiasm deploy`: manifests for Docker Compose, Kubernetes and KServe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.options import resolved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

deploy = Commands(
    help="Write manifests. Nothing is applied, and no cluster is asked. See docs/deploy.md.", no_args_is_help=True
)

Name = Annotated[str, typer.Option(help="Name of all that is made.")]
Image = Annotated[str, typer.Option(help="Container image; deploy/Dockerfile makes one.")]
Model = Annotated[str, typer.Option(help="Model directory inside the containers.", show_default="the packaged model")]
Topology = Annotated[str, typer.Option(help="local, e-pd or e-p-d.")]
Encoders = Annotated[int, typer.Option(help="Encoders to begin with.")]
Prefills = Annotated[int, typer.Option(help="Workers that prefill (and decode, in e-pd).")]
Decodes = Annotated[int, typer.Option(help="Workers that decode, in e-p-d.")]
Gpus = Annotated[int, typer.Option(help="GPUs of each worker.")]
Cpus = Annotated[int, typer.Option(help="CPUs of each container.")]
Memory = Annotated[int, typer.Option("--memory-gib", help="Memory of each container.")]
Keys = Annotated[bool, typer.Option("--keys/--no-keys", help="Whether callers need keys (`chiasm keys new`).")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write; none: standard output.")]


@deploy.command()
def compose(  # noqa: PLR0913 - one parameter is one option
    name: Name = "chiasm",
    image: Image = "chiasm:latest",
    model: Model = "",
    topology: Topology = "e-pd",
    encoders: Encoders = 1,
    prefills: Prefills = 1,
    decodes: Decodes = 1,
    gpus: Gpus = 0,
    cpus: Cpus = 4,
    memory: Memory = 8,
    keys: Keys = True,
    output: Output = None,
) -> None:
    """Write a Compose file: one host; workers are on a network that leads nowhere.

    Try:

      chiasm deploy compose -o compose.yaml && chiasm keys new me --file keys.toml && docker compose up
    """
    from chiasm.deploy.compose import compose_file

    plan = _plan(
        name=name, image=image, model=model, topology=topology, encoders=encoders, max_encoders=max(encoders, 1),
        prefills=prefills, decodes=decodes, gpus=gpus, cpus=cpus, memory_gib=memory, keys=keys,
    )  # fmt: skip
    _write([compose_file(plan)], output)


@deploy.command()
def kubernetes(  # noqa: PLR0913 - one parameter is one option
    name: Name = "chiasm",
    image: Image = "chiasm:latest",
    model: Model = "",
    topology: Topology = "e-pd",
    gateways: Annotated[int, typer.Option(help="Gateways; each has limits and knowledge of its own.")] = 2,
    encoders: Encoders = 1,
    max_encoders: Annotated[int, typer.Option(help="Encoders that the autoscaler may make.")] = 4,
    prefills: Prefills = 1,
    decodes: Decodes = 1,
    gpus: Gpus = 0,
    cpus: Cpus = 4,
    memory: Memory = 8,
    keys: Keys = True,
    downloads: Annotated[
        bool, typer.Option("--downloads", help="Let gateways fetch media from public addresses (port 443).")
    ] = False,
    autoscaler: Annotated[str, typer.Option(help="hpa, keda or none.")] = "hpa",
    queue_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds of work waiting per encoder that are aimed at.")
    ] = 0.5,
    prometheus: Annotated[str, typer.Option(help="Prometheus' address, for keda.", show_default=False)] = "",
    output: Output = None,
) -> None:
    """Write Kubernetes objects: gateways, workers, services, disruption budgets, network policies, an autoscaler.

    Try:

      chiasm deploy kubernetes --max-encoders 8 -o chiasm.yaml && kubectl apply -f chiasm.yaml
    """
    from chiasm.deploy.kubernetes import kubernetes_manifests
    from chiasm.errors import InvalidSettingError

    if autoscaler not in ("hpa", "keda", "none"):
        raise InvalidSettingError(f"No autoscaler '{autoscaler}'", hint="hpa, keda or none")
    plan = _plan(
        name=name, image=image, model=model, topology=topology, gateways=gateways, encoders=encoders,
        max_encoders=max_encoders, prefills=prefills, decodes=decodes, gpus=gpus, cpus=cpus, memory_gib=memory,
        keys=keys, downloads=downloads,
    )  # fmt: skip
    _write(kubernetes_manifests(plan, autoscaler, queue_s, prometheus), output)  # type: ignore[arg-type]  # checked above


@deploy.command()
def kserve(  # noqa: PLR0913 - one parameter is one option
    name: Name = "chiasm",
    image: Image = "chiasm:latest",
    storage: Annotated[
        str,
        typer.Option(help="KServe's address of the model: pvc://, s3://, hf://.", show_default="the packaged model"),
    ] = "",
    replicas: Annotated[int, typer.Option(help="Servers to begin with.")] = 1,
    max_replicas: Annotated[int, typer.Option(help="Servers that KServe may make.")] = 4,
    task: Annotated[
        str, typer.Option(help="What a pooling model is served for (pooling.task).", show_default="what its files say")
    ] = "",
    processor: Annotated[
        list[str] | None, typer.Option(help="IO processor that /pooling offers; may be repeated.", show_default=False)
    ] = None,
    gpus: Gpus = 0,
    cpus: Cpus = 4,
    memory: Memory = 8,
    keys: Keys = True,
    output: Output = None,
) -> None:
    """Write a KServe InferenceService: whole servers, each in one pod.

    Try:

      chiasm deploy kserve --storage pvc://models/qwen -o chiasm.yaml && kubectl apply -f chiasm.yaml

      chiasm deploy kserve --name ranker --storage hf://me/cross-encoder --task classify --processor reranker
    """
    from chiasm.deploy.kserve import inference_service, pooling_settings

    plan = _plan(
        _OF_KSERVE, name=name, image=image, topology="local", gateways=replicas, max_encoders=max_replicas,
        gpus=gpus, cpus=cpus, memory_gib=memory, keys=keys,
    )  # fmt: skip
    settings = pooling_settings(task, processor or ())
    resolved(None, settings)  # says what is wrong before a pod does
    _write([inference_service(plan, storage, settings)], output)


_OF_KSERVE = {"gateways": "replicas", "max-encoders": "max-replicas"}


def _plan(called: "Mapping[str, str] | None" = None, **values: Any) -> Any:
    """The plan; `called` are options that are not called as its fields are."""
    import msgspec

    from chiasm.deploy.plan import Plan
    from chiasm.errors import InvalidSettingError

    try:
        return msgspec.convert(values, Plan)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        option = where.strip("`").removeprefix("$.").replace("_", "-")
        raise InvalidSettingError(f"--{(called or {}).get(option, option)}: {what}", hint="See --help") from error


def _write(documents: "Sequence[dict[str, Any]]", output: Path | None) -> None:
    import yaml

    from chiasm.cli.files import write_file

    text = yaml.safe_dump_all(documents, sort_keys=False, width=120)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_file(output, text)
        typer.echo(f"Wrote {output}", err=True)
