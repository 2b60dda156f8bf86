"""``fib init``, ``fib new`` and ``fib schema``: what one starts a dataset with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer

from flashinfer_bench.cli.datasets import dataset_roots, require_writable, tell_broken
from flashinfer_bench.cli.options import OneLocal, command_group, option
from flashinfer_bench.cli.output import emit, printable, talk
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.layout import require_dataset

Kind = Literal["definition", "solution", "workload", "trace"]
Language = Literal["python", "triton", "cpp", "cuda"]


def _given_name(name: str) -> str:
    if not name:
        raise typer.BadParameter("a name has at least one character")
    return name


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name; must be unique.", callback=_given_name)
]
_OF: Any = {"help": "The definition that it is for."}

app = typer.Typer(add_completion=False, rich_markup_mode=None)
schema_app = typer.Typer(add_completion=False, rich_markup_mode=None)
new_app = command_group("new", "Write a definition, solution or workload to start from.")


@app.command("init")
def init(folder: Annotated[Path, typer.Argument(metavar="DIR")] = Path()) -> None:
    """Write a small dataset: a definition, its baseline, a solution and a workload.

    What exists is never overwritten.
    """
    from fib_datasets.starters import init_dataset

    for path in init_dataset(folder):
        emit(printable(str(path)))
    where = shlex.quote(f"./{folder}" if str(folder).startswith("-") else str(folder))
    talk(f"next:\n  fib validate --strict {where}  # check the files")
    talk(f"  fib run {where}  # run the solutions and record traces")
    talk(f"  fib report best {where}  # rank what has run")


@new_app.command("definition")
def definition(
    name: Name,
    op_type: Annotated[str, option("--op-type", help="Family of the computation.")] = "op",
    local: OneLocal = None,
) -> None:
    """Write a definition, LayerNorm, to be changed into what you want to compute."""
    from fib_datasets.starters import new_definition

    emit(str(new_definition(_root(local), name, op_type)))
    given = f"--definition {shlex.quote(name)}{_given(local)}"
    talk(f"next: edit it, then: fib new solution NAME {given}")


@new_app.command("solution")
def solution(
    name: Name,
    of: Annotated[str, option("--definition", metavar="NAME", **_OF)],
    author: Annotated[str, option("--author", metavar="NAME", help="Who or what wrote it.")] = "me",
    language: Annotated[Language, option("--language", help="What it is written in.")] = "python",
    local: OneLocal = None,
) -> None:
    """Write a solution to be changed: the definition's reference, or an empty C++ function.

    Scores of solutions are relative to the one whose author is "baseline".
    """
    from fib_datasets.starters import new_solution

    emit(str(new_solution(_root(local), name, of, author, language)))
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

    Random integers lie in [0, 128): edit the line where that does not do, as for indices.
    """
    from fib_datasets.starters import new_workload

    path, made_up = new_workload(_root(local), of, given or ())
    emit(str(path))
    for name, value in made_up.items():
        talk(f"{name} = {value} (made up: give {name}=VALUE, or edit it)")


@schema_app.command("schema")
def schema(
    kind: Annotated[
        Optional[Kind], typer.Argument(metavar="[KIND]", help="Default: all of them.")
    ] = None,
    output: Annotated[
        Optional[Path],
        option("--output", "-o", metavar="DIR", help="Write KIND.schema.json into this folder."),
    ] = None,
) -> None:
    """Print the JSON schema of a file of a dataset, or of one line of it.

    An editor that knows the schema completes names of fields and marks misspelt ones. A file may
    name it as "$schema", which every reader ignores.
    """
    from fib_datasets.schema import MODELS, schema_of
    from flashinfer_bench.data.storage import replace_file

    if output is not None:
        require_writable(output, "name another folder with --output")
    found = {name: schema_of(name) for name in ([kind] if kind else MODELS)}
    if output is None:
        emit(json.dumps(found[kind] if kind else found, indent=2))
        return
    for name, one in found.items():
        path = output / f"{name}.schema.json"
        replace_file(path, (json.dumps(one, indent=2) + "\n").encode())
        emit(str(path))


def _given(local: Optional[Path]) -> str:
    """Return how to name the dataset in a command, as it was named in this one."""
    return f" --dataset {shlex.quote(str(local))}" if local is not None else ""


def _root(local: Optional[Path]) -> Path:
    (root,) = dataset_roots([local] if local else None)
    require_dataset(root)
    broken = TraceSet.from_path(root, on_error="collect").load_errors
    tell_broken([f"{error.where}: {error.message}" for error in broken])
    return root
