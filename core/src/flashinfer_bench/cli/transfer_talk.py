"""What the commands that move data tell on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.cli.output import talk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.errors import DataError

_SHOWN = 10


def tell_left_out(errors: Sequence[DataError]) -> None:
    """Name the records that could not be carried over, and why."""
    _tell([f"left out: {error.where}: {error.message}" for error in errors], "left out")
    if errors:
        talk("hint: the rest was carried over; --json and 'fib validate' list all of it")


def tell_notes(notes: Sequence[str]) -> None:
    """Tell what was lost of records that were carried over."""
    _tell([f"note: {note}" for note in notes], "note")


def tell_missing(paths: Sequence[str], pointers: Sequence[str] = ()) -> None:
    """Tell which tensor files are not there, or only in name."""
    if paths:
        talk(f"warning: {len(paths):,} tensor files are missing; the first is {paths[0]}")
    if pointers:
        talk(
            f"warning: {len(pointers):,} tensor files are Git LFS pointers; the first is "
            f"{pointers[0]}"
        )
        talk("hint: run 'git lfs pull' in the dataset, then do this again")


def counted(counts: Mapping[str, int]) -> str:
    """Return counts as ``2 definitions, 3 solutions``; those of nothing are left out."""
    found = [f"{count:,} {noun}" for noun, count in counts.items() if count]
    return ", ".join(found) or "nothing"


def error_documents(errors: Sequence[DataError]) -> list[dict[str, Any]]:
    """Return errors as they stand in ``--json``."""
    return [
        {"path": e.path, "line": e.line, "field": e.field, "message": e.message} for e in errors
    ]


def _tell(lines: Sequence[str], what: str) -> None:
    for line in lines[:_SHOWN]:
        talk(line)
    if len(lines) > _SHOWN:
        talk(f"{what}: … and {len(lines) - _SHOWN} more like these")
