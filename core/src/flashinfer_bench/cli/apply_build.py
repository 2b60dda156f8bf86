"""``fib apply build``: the builds, and what is shown of them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import emit_json, printable, table, talk
from flashinfer_bench.errors import (
    BuildCapabilityError,
    CapabilityError,
    FibError,
    SelectionError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.apply import ApplyConfig
    from flashinfer_bench.apply.table import ApplyTable

SCHEMA_VERSION = 1
COLUMNS = ("definition", "solution", "keys", "result", "detail")


class Wanted(NamedTuple):
    """A solution to be built: that of a definition, and how many of its keys it wins."""

    definition: str
    solution: str
    keys: int


def build_winners(
    dataset: Optional[Path],
    config: Optional[ApplyConfig],
    *,
    hardware: str,
    jobs: Optional[int],
    helper: bool,
    as_json: bool,
) -> ExitCode:
    """Build what a table would put to work, show what came of it, and return the exit code.

    Parameters
    ----------
    dataset : Path, optional
        The folder; by default that of ``FIB_DATASET_PATH``.
    config : ApplyConfig, optional
        The bounds on errors.
    hardware : str
        As traces name it.
    jobs : int, optional
        How many at the same time.
    helper : bool
        Whether to compile the helper that calls are dispatched with, too.
    as_json : bool
        Whether to write JSON instead of a table.

    Raises
    ------
    SelectionError
        If nobody wins anything on this hardware.
    """
    from flashinfer_bench.apply.table import ApplyTable

    found = ApplyTable.load_or_build(dataset, config, hardware=hardware)
    wanted = winners_of(found)
    if not wanted:
        raise SelectionError(
            f"no solution of the dataset may be used on {hardware}",
            hint="'fib apply list' says why",
        )
    return _Session(found, wanted).carry_out(jobs, helper=helper, as_json=as_json)


def winners_of(found: ApplyTable) -> list[Wanted]:
    """Return the solutions of a table, those with most keys first; equals by name."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, one in found.definitions.items():
        counts.update((name, choice.solution) for choice in one.choices.values())
        if one.best is not None:
            counts[name, one.best.solution] += 0  # listed, even if it wins no key
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [Wanted(name, solution, keys) for (name, solution), keys in order]


class Helper(NamedTuple):
    """What became of the helper of the dispatcher: `state` is one of `HELPER_TEXTS`."""

    state: str
    reason: Optional[str] = None
    log: str = ""

    def told(self) -> str:
        """Return a sentence about it."""
        return HELPER_TEXTS[self.state].format(reason=(self.reason or "").partition("\n")[0])


_WITHOUT = "calls are dispatched without it, as rightly but more slowly"
HELPER_TEXTS = {
    "built": "compiled; programs that enable apply from now on dispatch calls with it",
    "present": "compiled before; programs that enable apply dispatch calls with it",
    "skipped": f"not asked for; unless it was compiled before, {_WITHOUT}",
    "unavailable": f"not compiled ({{reason}}); {_WITHOUT}",
    "failed": f"not compiled ({{reason}}); {_WITHOUT}",
}


def build_helper() -> Helper:
    """Compile the helper of the dispatcher, unless it is there; what goes wrong costs only it."""
    try:
        from flashinfer_bench.apply.dispatch import native

        if native.maker() is not None:
            return Helper("present")
        talk("helper: compiling, which may take half a minute")
        native.build()
        if native.maker() is not None:
            return Helper("built")
    except (CapabilityError, ImportError) as error:  # no compiler, no torch
        return Helper("unavailable", _reason(error))
    except FibError as error:
        return Helper("failed", _reason(error), getattr(error, "log", ""))
    return Helper("failed", "it does not work with the torch that is installed")


class _Session:
    """One command: what has been built so far."""

    def __init__(self, found: ApplyTable, wanted: list[Wanted]) -> None:
        self._table = found
        self._wanted = wanted
        self._results: dict[str, Optional[Exception]] = {}
        self._begin = time.monotonic()
        self._seconds: Optional[float] = None
        self._interrupted = False
        self._helper = Helper("skipped")

    def carry_out(self, jobs: Optional[int], *, helper: bool, as_json: bool) -> ExitCode:
        from flashinfer_bench.apply.building import Builds

        builds = Builds(self._table.source)
        try:
            with redirect_stdout(sys.stderr):  # for what a builder prints
                names = [each.solution for each in self._wanted]
                builds.ahead(names, jobs, on_built=self._on_built)
                self._seconds = time.monotonic() - self._begin
                if helper:
                    self._helper = build_helper()
        except KeyboardInterrupt:
            self._interrupted = True
        self._show(as_json=as_json)
        return self._exit_code()

    def _on_built(self, name: str, error: Optional[Exception]) -> None:
        self._results[name] = error
        done = f"{len(self._results)}/{len(self._wanted)}"
        talk(printable(f"build {done}: {_state(error)} {name}"))

    def _done(self) -> list[tuple[Wanted, Optional[Exception]]]:
        results = self._results
        return [(each, results[each.solution]) for each in self._wanted if each.solution in results]

    def _show(self, *, as_json: bool) -> None:
        done = self._done()
        if as_json:
            emit_json(self._document(done))
        elif done:
            table("Builds", COLUMNS, (_row(each, error) for each, error in done))
        counts = Counter(_state(error) for _, error in done)
        told = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
        begun = "interrupted after " if self._interrupted else ""
        seconds = self._seconds
        if seconds is None:  # interrupted
            seconds = time.monotonic() - self._begin
        talk(f"{begun}{len(done):,} builds in {seconds:.1f} s: {told or 'none'}")
        talk(printable(f"helper: {self._helper.told()}"))
        hints = {error.hint for _, error in done if isinstance(error, FibError) and error.hint}
        for hint in sorted(hints):
            talk(printable(f"hint: {hint}"))

    def _document(self, done: list[tuple[Wanted, Optional[Exception]]]) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "hardware": self._table.hardware,
            "interrupted": self._interrupted,
            "helper": self._helper._asdict(),
            "builds": [
                {
                    **each._asdict(),
                    "result": _state(error),
                    "reason": None if error is None else _reason(error),
                    "log": getattr(error, "log", ""),
                }
                for each, error in done
            ],
        }

    def _exit_code(self) -> ExitCode:
        if self._interrupted:
            return ExitCode.INTERRUPTED
        states = {_state(error) for error in self._results.values()}
        if "failed" in states:
            return ExitCode.FINDINGS
        return ExitCode.CAPABILITY if "unavailable" in states else ExitCode.OK


def _state(error: Optional[Exception]) -> str:
    if error is None:
        return "built"
    return "unavailable" if isinstance(error, BuildCapabilityError) else "failed"


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, FibError) else f"{type(error).__name__}: {error}"


def _row(each: Wanted, error: Optional[Exception]) -> tuple[Any, ...]:
    detail = "" if error is None else _reason(error).partition("\n")[0]
    return (*each, _state(error), detail)
