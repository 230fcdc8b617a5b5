"""`chiasm plan`: what to expect before anything is started."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import FAILURE, print_json

if TYPE_CHECKING:
    from chiasm.launch.vllm.fit import Fit
    from chiasm.media.prepare.base import ImagePlan, ImagePreparer

plan = Commands(help="Work out beforehand what fits on a device.", no_args_is_help=True)
_GIB = 2**30
_LARGE_SIDE_PX = 16_384
_STEP_TOKENS = 2048


@plan.callback()
def _group() -> None:
    """Keep `fit` a subcommand while it is the only one."""


@plan.command()
def fit(  # noqa: PLR0913 - one parameter is one option
    model: Annotated[str | None, typer.Argument(metavar="[MODEL_DIR]", help="None: the packaged tiny model.")] = None,
    device_gib: Annotated[float, typer.Option(help="Memory of one device.", min=0.1)] = 24.0,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    picture: Annotated[
        str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Largest picture to expect.", show_default=False)
    ] = None,
    weights_gib: Annotated[
        float | None, typer.Option(help="Size of the weights, where the directory does not have them.", min=0)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16.", show_default="engine.dtype")] = None,
    max_model_tokens: Annotated[
        int | None, typer.Option(help="Longest prompt plus output.", show_default="4096")
    ] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Say where a vLLM server's memory would go, and for how many requests it is enough.

    Memory is reserved for the largest picture that a model takes unless vLLM is told how large they get. With
    --picture, both are worked out. The exit status is 1 when it does not fit.

    Try:

      chiasm plan fit ./Qwen3-VL-2B-Instruct --device-gib 8 --dtype bfloat16 --picture 896x896
    """
    from chiasm.launch.model import model_directory, preparer_of
    from chiasm.launch.vllm.devices import check_split
    from chiasm.launch.vllm.fit import Question
    from chiasm.launch.vllm.fit import fit as work_out
    from chiasm.launch.vllm.weights import Weights, weights_of
    from chiasm.routing.vllm.model import config_of

    settings = resolved(
        config_file, overrides, engine__model=model, engine__dtype=dtype, engine__max_model_tokens=max_model_tokens
    ).settings
    directory = model_directory(settings.engine.model)
    config, preparer, vllm = config_of(directory), preparer_of(directory), settings.vllm
    check_split(vllm, config.get("text_config") or config)
    given = None if weights_gib is None else Weights(0, int(weights_gib * _GIB))
    weights = given or weights_of(directory, settings.engine.dtype)

    def asked(largest: "ImagePlan | None") -> Question:
        return Question(
            device_bytes=int(device_gib * _GIB),
            memory_share=vllm.memory_share,
            device=device,
            dtype=settings.engine.dtype,
            max_model_tokens=settings.engine.max_model_tokens,
            max_step_tokens=vllm.max_step_tokens or _STEP_TOKENS,
            max_running=vllm.max_running,
            tensor_parallel=vllm.tensor_parallel,
            pipeline_parallel=vllm.pipeline_parallel,
            largest=largest,
        )

    found = {name: work_out(config, weights, asked(largest)) for name, largest in _largest(preparer, picture).items()}
    if json:
        print_json({name: _values(one) for name, one in found.items()})
    else:
        _print(found)
    if not list(found.values())[-1].does_fit:
        raise typer.Exit(FAILURE)


def _largest(preparer: "ImagePreparer | None", picture: str | None) -> "dict[str, ImagePlan | None]":
    """The largest picture to reserve for, by what the column is called."""
    from chiasm.errors import InvalidSettingError

    if preparer is None:
        return {"text only": None}
    columns: dict[str, ImagePlan | None] = {"any picture": preparer.plan(_LARGE_SIDE_PX, _LARGE_SIDE_PX)}
    if picture:
        width, _, height = picture.partition("x")
        if not re.fullmatch("[1-9][0-9]{0,4}x[1-9][0-9]{0,4}", picture):
            raise InvalidSettingError(f"'{picture}' is not a size", hint="As in 1024x768")
        columns[f"up to {picture}"] = preparer.plan(int(width), int(height))
    return columns


def _values(one: "Fit") -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(one) | {"fits": one.does_fit}


def _print(found: "dict[str, Fit]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    rows = {
        "usable": "usable_bytes",
        "weights": "weights_bytes",
        "encoder's cache": "encoder_cache_bytes",
        "encoder's work (estimate)": "encoder_work_bytes",
        "language model's work (estimate)": "language_work_bytes",
        "CUDA itself (estimate)": "overhead_bytes",
        "left for keys and values": "kv_bytes",
    }
    for label, field in rows.items():
        table.add_row(label, *(f"{getattr(one, field) / _GIB:.2f} GiB" for one in found.values()))
    table.add_row("tokens of keys and values", *(f"{one.kv_tokens:,}" for one in found.values()))
    table.add_row("requests of full length at once", *(f"{one.full_length_requests:.2f}" for one in found.values()))
    table.add_row("embeddings of the largest picture", *(f"{one.max_picture_embeddings:,}" for one in found.values()))
    Console().print(table)
    if not list(found.values())[-1].does_fit:
        typer.echo(
            "It does not fit. Say how large pictures get (--picture), lower --max-model-tokens, or split the model:"
        )
        typer.echo("  --set vllm.tensor_parallel=2")
