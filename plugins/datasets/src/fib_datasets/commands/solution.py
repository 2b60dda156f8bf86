"""``fib solution``: convert a solution to a folder of source files and back."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashinfer_bench.cli.options import AsJson, LogLevel, command_group, option
from flashinfer_bench.cli.output import emit, emit_document, set_up_logging, talk

if TYPE_CHECKING:
    from fib_datasets.transfer.packing import Packed

app = command_group("solution", "Convert a solution to a folder of source files and back.")


@app.command("unpack")
def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON file of a solution.")],
    output: Annotated[
        Path, option("--output", "-o", metavar="FOLDER", help="A new or empty folder.")
    ],
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Write the sources of a solution as files, for editing.

    The folder contains solution.json, with everything but the code, and the code in sources.
    """
    set_up_logging(log_level)
    from fib_datasets.transfer.packing import unpack_solution

    _tell(unpack_solution(file, output), as_json)


@app.command("pack")
def pack(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder written by 'fib solution unpack'.")
    ],
    output: Annotated[
        Path,
        option("--output", "-o", metavar="FILE", help="JSON file; an existing one is replaced."),
    ],
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Write a folder of source files as the JSON file of a solution.

    New files in sources are added, except hidden ones.
    """
    set_up_logging(log_level)
    from fib_datasets.transfer.packing import pack_solution

    _tell(pack_solution(folder, output), as_json)


def _tell(done: Packed, as_json: bool) -> None:
    solution = done.solution
    if as_json:
        emit_document(
            path=done.path,
            name=solution.name,
            definition=solution.definition,
            sources=[source.path for source in solution.sources],
            added=done.added,
        )
    else:
        emit(str(done.path))
    for name in done.added:
        talk(f"note: added new file {name}")
    count = len(solution.sources)
    talk(f"{solution.name}: {count} source{'s' * (count > 1)}")
