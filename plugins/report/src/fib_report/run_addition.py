"""Additions to ``fib run``: reasons for failures, ``--lf``, ``-x``, ``--maxfail``, ``--junit``."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import option
from flashinfer_bench.cli.output import console, printable, talk, with_colours, write_output
from flashinfer_bench.cli.run_options import RunAddition
from flashinfer_bench.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from fib_report.causes import Failures
    from flashinfer_bench.bench import Skipped
    from flashinfer_bench.data import Trace, TraceSet

_REASONS_SHOWN = 20
_ANNOTATIONS = 10  # GitHub shows no more of one kind in a step
# Characters that XML 1.0 forbids, even escaped.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def add_to_run(
    last_failed: Annotated[
        bool,
        option("--lf", "--last-failed", help="Run only what failed in its latest evaluation."),
    ] = False,
    exitfirst: Annotated[
        bool, option("-x", "--exitfirst", help="Stop after the first failure; exit with 1.")
    ] = False,
    maxfail: Annotated[
        Optional[int],
        option("--maxfail", metavar="N", min=1, help="Stop after N failures; exit with 1."),
    ] = None,
    junit: Annotated[
        Optional[Path], option("--junit", metavar="FILE", help="Write a JUnit XML file.")
    ] = None,
) -> RunAddition:
    """Take the values of the options that this plugin adds to ``fib run``."""
    if junit is not None:
        if not junit.name or junit.is_dir():
            raise ConfigError(f"--junit: {junit} is not a file name")
        if not junit.absolute().parent.is_dir():
            raise ConfigError(f"--junit: no folder {junit.parent}", hint="create it first")
    return Reasons(last_failed, 1 if exitfirst else maxfail, junit)


@dataclass(eq=False)
class Reasons(RunAddition):
    """Reports why solutions failed, during the run and at its end.

    Parameters
    ----------
    resume : bool
        Run only what failed in its latest evaluation.
    most : int, optional
        Stop the run after this number of failures.
    junit : Path, optional
        Write a JUnit XML file.
    hint : str, optional
        Where to read more. Default: the command that shows the first failure.
    """

    resume: bool = False
    most: Optional[int] = None
    junit: Optional[Path] = None
    hint: Optional[str] = None
    _traces: list[Trace] = field(default_factory=list)
    _skipped: list[Skipped] = field(default_factory=list)
    _failed: int = 0
    _told: set[Any] = field(default_factory=set)
    _root: Optional[Path] = None

    def choose(self, trace_set: TraceSet) -> TraceSet:
        """Return the part of the dataset to run: with ``--lf`` only what failed last."""
        self._root = trace_set.root
        if not self.resume:
            return trace_set
        from fib_report.results import collect_results, latest_results

        latest = latest_results(collect_results(trace_set))
        failed = {(one.definition, one.solution, one.workload) for one in latest if not one.passed}
        definitions, solutions, workloads = {}, {}, {}
        for name, definition in trace_set.definitions.items():
            wanted = {each for one, *both in failed if one == name for each in both}
            able = [one for one in trace_set.solutions.get(name, ()) if one.name in wanted]
            runs = [one for one in trace_set.workloads.get(name, ()) if one.workload.uuid in wanted]
            if able and runs:
                definitions[name], solutions[name], workloads[name] = definition, able, runs
        if not definitions:
            raise SelectionError(
                "all latest evaluations passed", hint="leave out --lf to run everything"
            )
        traces = {  # those that a run skips
            name: [one for one in group if (name, one.solution, one.workload.uuid) not in failed]
            for name, group in trace_set.traces.items()
        }
        return type(trace_set)(trace_set.root, definitions, solutions, workloads, traces)

    def evaluation_started(self, *what: Any) -> None:
        """Stop the run if enough has failed."""
        if self._enough():
            raise typer.Exit(ExitCode.FINDINGS)

    def evaluation_finished(self, trace: Trace) -> None:
        """Report the reason of a failure."""
        self._traces.append(trace)
        run = trace.evaluation
        if run is None or trace.is_successful():
            return
        from fib_report.causes import reason_of

        self._failed += 1
        reason = printable(reason_of(run))
        key = trace.definition, trace.solution, run.status
        log = logging.getLogger("flashinfer_bench")
        if sys.stderr.isatty() and log.isEnabledFor(logging.WARNING):
            if key not in self._told:  # once, not for each workload
                head = f"{run.status.value} {trace.definition} / {trace.solution}"
                _say(printable(head))
                _say(f"  {reason}")
        elif log.isEnabledFor(logging.INFO) and not sys.stderr.isatty():
            talk(f"      {reason}")  # below the line of the evaluation
        self._told.add(key)

    def skipped(self, skipped: Skipped) -> None:
        """Note what could not be evaluated."""
        self._skipped.append(skipped)

    def sum_up(self) -> None:
        """Report the grouped reasons; write the JUnit file and annotations for GitHub."""
        from fib_report.causes import group_failures

        groups = group_failures(self._traces)
        if groups and logging.getLogger("flashinfer_bench").isEnabledFor(logging.WARNING):
            self._show(groups)
        if self.junit is not None:
            write_output(self.junit, junit_xml(self._traces, self._skipped))
            talk(f"JUnit report written to {self.junit}")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for one in groups[:_ANNOTATIONS]:
                title = _escaped(f"{one.status.value} {_names(one)}", more=":,")
                sys.stderr.write(f"::error title={title}::{_escaped(one.reason)}\n")
            failing = {one.reason: one for one in self._skipped if one.kind == "reference"}
            for reason, skip in [*failing.items()][:_ANNOTATIONS]:
                title = _escaped(f"reference of {skip.definition} fails", more=":,")
                sys.stderr.write(f"::error title={title}::{_escaped(reason)}\n")
        if self._enough():
            talk(f"stopped after {self._failed} failure{'s' * (self._failed > 1)}")
            raise typer.Exit(ExitCode.FINDINGS)

    def _enough(self) -> bool:
        return self.most is not None and self._failed >= self.most

    def _show(self, groups: list[Failures]) -> None:
        talk(f"{self._failed:,} failure{'s' * (self._failed > 1)}, by reason:")
        for one in groups[:_REASONS_SHOWN]:
            _say(f"  {one.total} x {one.status.value} {printable(_names(one))}")
            _say(f"      {printable(one.reason)}")
        if len(groups) > _REASONS_SHOWN:
            talk(f"  … and {len(groups) - _REASONS_SHOWN} more reasons")
        named = [groups[0].solutions[0][1], *([str(self._root)] if self._root else [])]
        shown = f"{shlex.join(['fib', 'show', *named])!r} shows log, source and settings"
        talk(f"hint: {self.hint or shown}")


def _say(text: str) -> None:
    screen = console(sys.stderr)
    with screen.capture() as shown:
        screen.print(with_colours(text), soft_wrap=not screen.is_terminal)
    sys.stderr.write(shown.get())  # through stderr, so that a progress bar moves


def _names(group: Failures) -> str:
    definition, solution = group.solutions[0]
    others = len(group.solutions) - 1
    more = f" and {others} other solution{'s' if others > 1 else ''}" if others else ""
    return f"{definition} / {solution}{more}"


def _escaped(text: str, more: str = "") -> str:
    """Return `text` escaped for GitHub's workflow commands."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return printable(text)


def junit_xml(traces: list[Trace], skipped: list[Skipped]) -> bytes:
    """Return evaluations as JUnit XML.

    Parameters
    ----------
    traces : list of Trace
        The evaluations: a suite for each definition, a case for each solution and workload.
    skipped : list of Skipped
        What could not be evaluated.
    """
    from xml.etree.ElementTree import Element, SubElement, tostring

    from fib_report.causes import reason_of

    top = Element("testsuites", name="fib run")
    suites: dict[str, Element] = {}

    def add(definition: str, name: str, seconds: float = 0.0) -> Element:
        suite = _NO_XML.sub("?", definition)
        if definition not in suites:
            suites[definition] = SubElement(top, "testsuite", name=suite)
        told = {"classname": suite, "name": _NO_XML.sub("?", name), "time": f"{seconds:.3f}"}
        return SubElement(suites[definition], "testcase", told)

    for trace in traces:
        run = trace.evaluation
        assert run is not None
        seconds = run.provenance.wall_s if run.provenance is not None else None
        case = add(trace.definition, f"{trace.solution}[{trace.workload.uuid}]", seconds or 0.0)
        if not trace.is_successful():
            message = _NO_XML.sub("?", reason_of(run))
            told = SubElement(case, "failure", type=run.status.value, message=message)
            told.text = _NO_XML.sub("?", run.log)
    for one in skipped:
        case = add(one.definition, f"{one.solution}[{one.workload or 'all workloads'}]")
        kind = "error" if one.kind == "reference" else "skipped"
        SubElement(case, kind, message=_NO_XML.sub("?", one.reason))
    for suite in suites.values():
        for attribute, path in {
            "tests": "*",
            "failures": "*/failure",
            "errors": "*/error",
            "skipped": "*/skipped",
        }.items():
            suite.set(attribute, str(len(suite.findall(path))))
    return bytes(tostring(top, encoding="utf-8", xml_declaration=True))
