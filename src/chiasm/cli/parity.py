"""`chiasm parity`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import FAILURE, LoadingLine, print_json

if TYPE_CHECKING:
    from chiasm.pooling.parity import Comparison, ParityReport


def parity(  # noqa: PLR0913 - one parameter is one option
    model: Annotated[str, typer.Argument(metavar="MODEL_DIR", help="An embedding, classifying or reranking model.")],
    texts: Annotated[
        Path | None,
        typer.Option(help="One text a line; a tab makes it a pair. None: texts of all lengths.", show_default=False),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.", show_default="float32")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest difference to float32.", show_default="1e-5; 2e-2 for bfloat16"),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Of classifiers: what a class must reach to be given.", show_default="the largest is"),
    ] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Compare a model as it is served with the same model in transformers; exit status 1 when they differ.

    Checks tokens, labels, decisions, numbers in a batch and alone, and says how much padding would have changed.

    Try:

      chiasm parity ./all-MiniLM-L6-v2

      chiasm parity ./my-classifier --dtype bfloat16 --texts reviews.txt --json
    """
    settings = resolved(config_file, overrides, engine__model=model, engine__dtype=dtype).settings
    from chiasm.launch.parity import check_parity

    with LoadingLine() as progress:
        report = check_parity(settings, _read(texts) if texts else (), tolerance, progress, threshold)
    if json:
        print_json(report)
    else:
        _print(report)
    raise typer.Exit(0 if report.is_passed else FAILURE)


def _read(file: Path) -> list[str | tuple[str, str]]:
    from chiasm.errors import InvalidSettingError

    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError(f"Cannot read {file}: {error}", hint="One text a line, UTF-8") from error
    pairs: list[str | tuple[str, str]] = []
    for line in lines:
        first, tab, second = line.partition("\t")
        pairs.append((first, second) if tab else line)
    if not pairs or len({isinstance(one, str) for one in pairs}) > 1:
        raise InvalidSettingError(f"{file} has no lines, or pairs and single texts", hint="Use one kind")
    return pairs


def _print(report: "ParityReport") -> None:
    typer.echo(f"{report.model}: {report.task}, served in {report.dtype}\n")
    for one in report.comparisons:
        typer.echo(_line(one))
    typer.echo(f"\n{'The same' if report.is_passed else 'NOT the same'}, by these tolerances")


def _line(one: "Comparison") -> str:
    mark = "ok  " if one.is_passed else "FAIL"
    parts = [f"{mark}  {one.name}: {one.num_items} items, largest difference {one.max_difference:.2g}"]
    parts.append(f"mean {one.mean_difference:.2g}")
    if one.rank_agreement is not None:
        parts.append(f"{one.rank_agreement:.1%} of pairs in the same order")
    if not one.is_passed:
        worst = ", ".join(f"{item.item} by {item.difference:.2g}" for item in one.worst)
        parts.append(f"allowed {one.tolerance:g}; most in items {worst}")
    return ", ".join(parts)
