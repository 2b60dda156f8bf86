"""``fib cache``: list and prune builds on disk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from fib_build_cache.store import CacheEntry, list_entries, prune, utc
from flashinfer_bench import env
from flashinfer_bench.cli.options import AsJson, command_group, option
from flashinfer_bench.cli.output import Column, document_of, emit_document, table, talk

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS = (
    Column("builder", "builder"),
    Column("solution", "solution"),
    Column("language", "language"),
    Column("state", "state"),
    Column("bytes", "bytes"),
    Column("created", "created", people=False, programs=False, json=True),
    Column("last_used", lambda entry: utc(entry.last_used)),
    Column("path", "path"),
)

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.IGNORECASE | re.ASCII)

app = command_group("cache", "List or prune the build cache in $FIB_CACHE_PATH.")


def _parse_age(text: str) -> float:
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time; write it as 90s, 15m, 12h, 30d or 4w")
    return float(found[1]) * _SECONDS[found[2].lower()]


def _parse_size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write it as 5000000, 500MB or 2GiB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** _POWERS[found[2].lower()])


@app.command("list")
def list_cache(
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every library to check that it is unchanged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List what is in the cache, least recently used first."""
    entries = list_entries(verify=verify)
    if as_json:
        emit_document(entries=_documents(entries))
    elif entries:
        table("Cache", COLUMNS, entries)
    size = _human(sum(entry.bytes for entry in entries))
    talk(f"{len(entries):,} entries, {size} in {env.cache_path()}")


@app.command("prune")
def prune_cache(
    older_than: Annotated[
        Optional[float],
        option(
            "--older-than",
            parser=_parse_age,
            metavar="TIME",
            help="Remove builds unused for this long: 12h, 30d, 4w.",
        ),
    ] = None,
    max_size: Annotated[
        Optional[int],
        option(
            "--max-size",
            parser=_parse_size,
            metavar="SIZE",
            help="Remove builds until the total is at most this: 500MB, 2GiB.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all builds.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be removed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove builds, least recently used first, and any that can no longer be used.

    A build in progress is kept; a removed build is made again when it is needed.
    """
    result = prune(
        older_than=older_than, max_bytes=max_size, everything=everything, dry_run=dry_run
    )
    if as_json:
        emit_document(
            dry_run=dry_run,
            removed=_documents(result.removed),
            busy=_documents(result.busy),
            bytes_freed=result.bytes_freed,
            bytes_left=result.bytes_left,
        )
    elif result.removed:
        table("Would be removed" if dry_run else "Removed", COLUMNS, result.removed)
    did = "would remove" if dry_run else "removed"
    freed, left = _human(result.bytes_freed), _human(result.bytes_left)
    talk(f"{did} {len(result.removed):,} entries of {freed}; {left} left")
    if result.busy:
        talk(f"kept {len(result.busy):,} entries that are in use")


def _documents(entries: Iterable[CacheEntry]) -> list[dict[str, Any]]:
    return [document_of(COLUMNS, entry) for entry in entries]


def _human(size: int) -> str:
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" else f"{value:.1f} {units[0]}"
