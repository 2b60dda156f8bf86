"""Options that several commands share, so that they are spelt and explained alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from flashinfer_bench.cli.completion import complete_definition, complete_solution

Local = Annotated[
    Optional[list[Path]],
    typer.Option(
        "--local",
        metavar="DIR",
        show_default=False,
        help="Dataset folder; there may be several. Default: $FIB_DATASET_PATH.",
    ),
]
OneLocal = Annotated[
    Optional[Path],
    typer.Option(
        "--local",
        metavar="DIR",
        show_default=False,
        help="Dataset folder. Default: $FIB_DATASET_PATH.",
    ),
]
Hub = Annotated[
    Optional[str],
    typer.Option(
        "--hub",
        metavar="REPO[@REV]",
        show_default=False,
        help="Dataset of the Hugging Face hub, at a branch, tag or commit.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
LogLevel = Annotated[
    Optional[str],
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        show_default=False,
        help="DEBUG, INFO, WARNING, ERROR or CRITICAL. Default: $FIB_LOG_LEVEL or WARNING.",
    ),
]


def _names(flag: str, text: str, complete: Optional[Any] = None) -> Any:
    """Make a filter option; one flag may be followed by several names, and given several times."""
    return typer.Option(
        *((f"--{flag}", f"--{flag}s") if not flag.endswith("s") else (f"--{flag}",)),
        metavar="NAME...",
        show_default=False,
        autocompletion=complete,
        help=text,
    )


Definitions = Annotated[
    Optional[list[str]], _names("definition", "Only these definitions.", complete_definition)
]
Solutions = Annotated[
    Optional[list[str]], _names("solution", "Only these solutions.", complete_solution)
]
OpTypes = Annotated[Optional[list[str]], _names("op-type", "Only definitions of these types.")]
Authors = Annotated[Optional[list[str]], _names("author", "Only solutions of these authors.")]
Hardware = Annotated[
    Optional[list[str]],
    typer.Option(
        "--hardware",
        metavar="TEXT...",
        show_default=False,
        help="Only traces from devices whose name contains one of these.",
    ),
]
