"""Names that the shell offers on <TAB>, from file names alone: no record is read for them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer  # noqa: TC002 - it reads the annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 500


def complete_definition(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the definitions in the dataset of the command line that begin with `incomplete`."""
    return _stems(ctx, "definitions", incomplete)


def complete_solution(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the solutions in the dataset of the command line that begin with `incomplete`."""
    return _stems(ctx, "solutions", incomplete)


def _stems(ctx: Any, folder: str, incomplete: str) -> list[str]:
    from flashinfer_bench import env

    roots = ctx.params.get("local") or [env.dataset_path()]
    found = (stem for root in roots for stem in _in_folder(Path(root) / folder))
    return sorted(islice((stem for stem in found if stem.startswith(incomplete)), _MOST))


def _in_folder(folder: Path) -> Iterator[str]:
    return (path.stem for path in folder.rglob("*.json"))
