"""``fib init``, ``fib new`` and ``fib schema``: starting a dataset."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer

from flashinfer_bench.cli.datasets import dataset_roots, require_writable, tell_broken
from flashinfer_bench.cli.options import OneLocal, command_group, option
from flashinfer_bench.cli.output import emit, printable, talk
from flashinfer_bench.data import TraceSet, layout

Kind = Literal["definition", "solution", "workload", "trace"]
Language = Literal["python", "triton", "cpp", "cuda"]


def _given_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]{0,159}", name, re.ASCII):
        raise typer.BadParameter(f"{name!r}: use 1 to 160 letters, digits, '_', '.' and '-'")
    return name


Name = Annotated[str, typer.Argument(metavar="NAME", help="A unique name.", callback=_given_name)]
_OF: Any = {"help": "Name of its definition."}

app = typer.Typer(add_completion=False, rich_markup_mode=None)
schema_app = typer.Typer(add_completion=False, rich_markup_mode=None)
new_app = command_group("new", "Create a definition, solution or workload to start from.")


@app.command("init")
def init(folder: Annotated[Path, typer.Argument(metavar="DIR")] = Path()) -> None:
    """Create a small dataset: a definition, its baseline, a solution and a workload.

    Existing files are never overwritten.
    """
    from fib_datasets.starters import init_dataset

    for path in init_dataset(folder):
        emit(printable(str(path)))
    where = shlex.quote(f"./{folder}" if str(folder).startswith("-") else str(folder))
    talk(f"next:\n  fib validate --strict {where}  # check the files")
    talk(f"  fib run {where}  # run the solutions and record traces")
    talk(f"  fib report best {where}  # rank the solutions")


@new_app.command("definition")
def definition(
    name: Name,
    op_type: Annotated[str, option("--op-type", help="Family of the operation.")] = "op",
    local: OneLocal = None,
) -> None:
    """Create a definition as a template: LayerNorm, to be edited."""
    from fib_datasets.starters import new_definition

    emit(str(new_definition(_dataset(local), name, op_type)))
    given = f"--definition {shlex.quote(name)}{_given(local)}"
    talk(f"next: edit it, then: fib new solution NAME {given}")


@new_app.command("solution")
def solution(
    name: Name,
    of: Annotated[str, option("--definition", metavar="NAME", **_OF)],
    author: Annotated[str, option("--author", metavar="NAME", help="Its author.")] = "me",
    language: Annotated[Language, option("--language", help="Its language.")] = "python",
    local: OneLocal = None,
) -> None:
    """Create a solution as a template: the definition's reference, or an empty C++ function.

    Scores are relative to the solution whose author is "baseline".
    """
    from fib_datasets.starters import new_solution

    emit(str(new_solution(_dataset(local), name, of, author, language)))
    talk(f"next: edit it, then: fib run --definition {shlex.quote(of)}{_given(local)}")


@new_app.command("workload")
def workload(
    of: Annotated[str, typer.Argument(metavar="DEFINITION", **_OF)],
    given: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="AXIS=SIZE...", help="Sizes (default: 128); INPUT=VALUE: scalars."),
    ] = None,
    local: OneLocal = None,
) -> None:
    """Append a workload with random tensors to the file of a definition.

    Random integers are in [0, 128). Edit the line if that is not suitable, for example for indices.
    """
    from fib_datasets.starters import new_workload

    path, made_up = new_workload(_dataset(local), of, given or ())
    emit(str(path))
    for name, value in made_up.items():
        talk(f"{name} = {value} (a default: give {name}=VALUE, or edit it)")


@schema_app.command("schema")
def schema(
    kind: Annotated[
        Optional[Kind], typer.Argument(metavar="[KIND]", help="Default: all kinds.")
    ] = None,
    output: Annotated[
        Optional[Path],
        option("--output", "-o", metavar="DIR", help="Write KIND.schema.json into this folder."),
    ] = None,
) -> None:
    """Print the JSON schema of a file of a dataset, or of one of its lines.

    With the schema, editors complete names of fields and mark misspelt ones. Files may refer to it
    in the field "$schema", which readers ignore.
    """
    from fib_datasets.schema import MODELS, schema_of
    from flashinfer_bench.data.storage import replace_file

    if output is not None:
        require_writable(output, "give another folder with --output")
    found = {name: schema_of(name) for name in ([kind] if kind else MODELS)}
    if output is None:
        emit(json.dumps(found[kind] if kind else found, indent=2))
        return
    for name, one in found.items():
        path = output / f"{name}.schema.json"
        replace_file(path, (json.dumps(one, indent=2) + "\n").encode())
        emit(str(path))


def _given(local: Optional[Path]) -> str:
    """Return the dataset option for further commands, as given in this one."""
    return f" --dataset {shlex.quote(str(local))}" if local is not None else ""


def _dataset(local: Optional[Path]) -> TraceSet:
    (root,) = dataset_roots([local] if local else None)
    layout.require_dataset(root)
    dataset = TraceSet.from_path(root, on_error="collect")
    tell_broken([f"{error.where}: {error.message}" for error in dataset.load_errors])
    return dataset
