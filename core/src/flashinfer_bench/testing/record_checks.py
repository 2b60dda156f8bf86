"""Checks of records, factories and probes, for one record or for all of a plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import env
from flashinfer_bench._lazy import import_string
from flashinfer_bench.testing.verdict import bullets, fail, in_short, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.plugins import Record

BASES: Mapping[str, str] = {
    "builder": "flashinfer_bench.compile:Builder",
    "timer": "flashinfer_bench.bench.timing:Timer",
    "key_builder": "flashinfer_bench.apply:ApplyKeyBuilder",
    "adapter": "flashinfer_bench.integration:Adapter",
    "evaluator": "flashinfer_bench.bench.evaluators:Evaluator",
    "executor": "flashinfer_bench.bench.executors.base:Executor",
}
"""Path of the class that the factory of each kind subclasses. A command's is no class."""

_SECONDS = 120.0
_LATE = "did not answer within"

Step = dict[str, Any]
"""What one step of `flashinfer_bench.testing.light` reports."""


def look(
    *,
    plugin: Optional[str] = None,
    probe: Optional[str] = None,
    construct: Optional[str] = None,
    libraries: Sequence[str] = (),
) -> dict[str, Step]:
    """Import a plugin's module, ask a probe, construct something: in a fresh interpreter.

    Parameters
    ----------
    plugin : str, optional
        The module, as in an entry point: ``package.module`` or ``package.module:object``.
    probe : str, optional
        ``"package.module:function"``.
    construct : str, optional
        ``"package.module:Name"``, called without arguments.
    libraries : sequence of str
        Modules that count as heavy, besides those that always do.

    Returns
    -------
    dict
        What each step did: ``error`` (a traceback), ``answer``, ``changes``, ``heavy``.
    """
    steps = {"plugin": plugin, "probe": probe, "construct": construct}
    more = {"libraries": list(libraries), "timeout_s": env.probe_timeout_s(), "sys_path": sys.path}
    done = subprocess.run(
        [sys.executable, "-m", "flashinfer_bench.testing.light"],
        input=json.dumps({**steps, **more}),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    try:
        found: dict[str, Step] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        error = f"the process ended with status {done.returncode}\n{done.stderr[-2000:]}"
        nothing: Step = {"error": error, "answer": None, "changes": {}, "heavy": []}
        found = dict.fromkeys(steps, nothing)
    return found


def require_summary(record: Record) -> None:
    """Fail unless the record can be told from others in a list."""
    require(
        record.summary,
        f"{type(record).__name__} {record.name!r} has no summary",
        why="`fib plugins list` shows nothing that a user could choose by",
        fix="give the record a summary: one line that says what is special about it",
    )


def require_factory(path: str, kind: str) -> None:
    """Fail unless `path` leads to what the factory of a record of `kind` has to be."""
    try:
        found = import_string(path)
    except Exception as error:  # noqa: BLE001 - a plugin's module may raise anything
        fail(
            f"{path} cannot be imported: {in_short(error)}",
            why="the record is listed, but using it fails",
            fix='name an existing class as "package.module:Name"; keep the imports of optional '
            "libraries inside functions, and let the probe say that they are missing",
        )
    if kind not in BASES:
        require(
            callable(found),
            f"{path} is {found!r}, which is neither a function nor a typer.Typer",
            why="`fib` cannot make a command of it",
            fix="name a function with annotated parameters, or a typer.Typer",
        )
        return
    base = import_string(BASES[kind])
    require(
        isinstance(found, type) and issubclass(found, base),
        f"{path} is {found!r}, which is not a subclass of {base.__module__}.{base.__name__}",
        why="the host refuses it when it is first needed",
        fix=f"make the factory a subclass of {base.__name__}",
    )


def require_constructible(path: str, *arguments: Any) -> Any:
    """Return what the factory makes; fail if it raises."""
    try:
        return import_string(path)(*arguments)
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
        given = ", ".join(type(argument).__name__ for argument in arguments)
        fail(
            f"{path}({given}) raised {in_short(error)}",
            why=f"the host makes it itself, with {given or 'no arguments'}",
            fix="give __init__ no further required parameters, and let it neither look for tools "
            "nor start anything: that is for the probe, and for the first use",
        )


def require_light(module: str, step: Step) -> None:
    """Fail unless importing a plugin's module was quick and left no traces."""
    require(
        not step["error"],
        f"importing {module} raised:\n{step['error']}",
        why="the plugin is set aside as broken, with all of its records",
        fix="the module of the entry point should hold the hooks and nothing else",
    )
    require(
        not step["heavy"],
        f"importing {module} imports {', '.join(step['heavy'])}",
        why="every start of `fib` loads every plugin, also the ones that are not used",
        fix="import inside the functions that need it; records name code by string",
    )
    require_unchanged(f"importing {module}", step)


def require_answers(path: str, step: Step) -> None:
    """Fail unless a probe answered in time, and said why it said no."""
    answers = _answers(path, step)
    raised = [answer["reason"] for answer in answers if answer["raised"]]
    require(
        not raised,
        f"{path}: {raised[:1]}",
        why="a probe that raises counts as a no, with a traceback in place of advice",
        fix="catch what can go wrong, and return Availability(False, reason, remedy)",
    )
    # Importing, the slowest part, is paid by the first; a busy machine may delay any of them.
    late = [answer["reason"] for answer in answers if _LATE in answer["reason"]]
    require(
        len(late) < len(answers),
        f"{path}: {late[:1]}",
        why="a probe that is too slow counts as a no, and delays `fib plugins list`",
        fix="look for files and versions; do not import the library or start its compiler",
    )
    bare = [answer["reason"] for answer in answers if not answer["ok"] and not answer["remedy"]]
    require(
        not [reason for reason in bare if _LATE not in reason],
        f"{path} says no without a remedy: {bare[:1]}",
        why="the user reads why it cannot be used here, but not what to do about it",
        fix="give Availability a remedy: what to install, what to set",
    )


def require_pure(path: str, step: Step) -> None:
    """Fail unless a probe gave one answer, imported nothing heavy and left no traces."""
    answers = _answers(path, step)
    kept = {(answer["ok"], answer["reason"]) for answer in answers if _LATE not in answer["reason"]}
    require(
        len(kept) <= 1,
        f"{path} gave different answers when asked again:\n"
        + bullets([f"{ok}: {reason}" for ok, reason in sorted(kept)]),
        why="it is asked once, and its answer is kept for the whole process",
        fix="make it depend on the machine and the environment only",
    )
    require(
        not step["heavy"],
        f"{path} imports {', '.join(step['heavy'])}",
        why="the probes of all plugins may run before one is chosen, in the process that forks "
        "others: importing a library there is slow, and may make a device context",
        fix="use importlib.util.find_spec and importlib.metadata.version",
    )
    require_unchanged(f"asking {path}", step)


def require_unchanged(what: str, step: Step) -> None:
    """Fail if a step changed the process."""
    found = [f"{name}: {text}" for name, text in step["changes"].items()]
    require(
        not found,
        f"{what} changed the process:\n{bullets(found)}",
        why="it happens in every program that uses flashinfer_bench, unasked",
        fix="leave global state alone, or restore it",
    )


def _answers(path: str, step: Step) -> list[dict[str, Any]]:
    if step["error"]:
        fail(
            f"asking {path} ended the process:\n{step['error']}",
            why="`fib plugins list` would end with it",
            fix="a probe returns an Availability, whatever happens",
        )
    answers: list[dict[str, Any]] = step["answer"]
    return answers
