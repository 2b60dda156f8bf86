"""``fib doctor``: find and repair damage in a dataset."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from fib_datasets.commands import counted
from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, GreedyCommand, LogLevel, OneLocal
from flashinfer_bench.cli.output import emit_document, set_up_logging, table, talk

if TYPE_CHECKING:
    from fib_datasets.repair import Diagnosis, Issue, Repair

COLUMNS = ("kind", "remedy", "place", "message")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("doctor", cls=GreedyCommand)
def doctor(
    local: OneLocal = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Move what can safely be removed to a backup folder."),
    ] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="With --repair: also move orphaned records and files.")
    ] = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Find torn and invalid lines, duplicates, orphans, missing tensors and stale locks.

    Changes nothing without --repair, and never deletes anything: --repair moves things to the
    folder doctor_backup_<time> of the dataset. Other processes may append in the meantime.

    Exits with 1 if there are issues (with --repair: if some are left). Notes do not count, because
    intact datasets may have them.
    """
    set_up_logging(log_level, default="ERROR")  # unfinished lines are reported as issues
    if orphans and not repair:
        raise typer.BadParameter("--orphans requires --repair")
    (root,) = dataset_roots([local] if local else None)
    from fib_datasets.repair import examine
    from fib_datasets.repair import repair as carry_out

    done = carry_out(root, orphans=orphans) if repair else None
    left = done.left if done is not None else examine(root)
    if as_json:
        emit_document(
            root=left.root,
            clean=left.is_clean,
            counts=left.counts,
            issues=[_document(one) for one in left.issues],
            repaired=None if done is None else [_document(one) for one in done.taken],
            backup=None if done is None else done.backup,
        )
    else:
        _print(left, done)
    raise typer.Exit(ExitCode.OK if left.is_clean else ExitCode.FINDINGS)


def _print(left: Diagnosis, done: Optional[Repair]) -> None:
    if done is not None and done.taken:
        table("Moved to the backup", COLUMNS, map(_row, done.taken))
        kinds = Counter(one.kind.value for one in done.taken)
        talk(f"moved {counted(kinds)} to {done.backup}")
        for one in left.issues:
            talk(f"remaining: {'  '.join(_row(one))}")
    elif left.issues:
        table(f"Issues of {left.root}", COLUMNS, map(_row, left.issues))
    seen = ", ".join(f"{count:,} {noun}" for noun, count in left.counts.items())
    notes = sum(one.is_note for one in left.issues)
    talk(f"{left.root}: {len(left.issues) - notes} issues, {notes} notes in {seen}")
    if done is None and any(one.remedy.value == "safe" for one in left.issues):
        talk("hint: 'fib doctor --repair' moves what is marked safe to a backup folder")


def _row(one: Issue) -> tuple[str, ...]:
    message = f"{one.message} ({one.hint})" if one.hint else one.message
    return one.kind.value, "note" if one.is_note else one.remedy.value, one.where, message


def _document(one: Issue) -> dict[str, Any]:
    return {**vars(one), "note": one.is_note}
