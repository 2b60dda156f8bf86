"""Checks of what is taken from the cache: only what would have been made anew."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from flashinfer_bench.testing.builders.variants import with_constant, with_options
from flashinfer_bench.testing.children import ChildTask
from flashinfer_bench.testing.verdict import require, skip

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.testing.builders.kit import BuilderKit
    from flashinfer_bench.testing.children import ChildReport

_SEE_OWN = "see test_a_process_of_its_own"
_DAMAGED_BYTES = 64
_TRIED = 4096


@dataclass(frozen=True)
class CacheReports:
    """What processes did that found a finished build in the cache, or a half one.

    Attributes
    ----------
    options : ChildReport
        Of one that built the same sources with other options.
    signature : ChildReport
        Of one that built them for a definition with one more axis.
    damaged : ChildReport
        Of one that found damaged libraries.
    damage : list of str
        The libraries.
    killed : ChildReport
        Of one that was killed in the middle.
    after : ChildReport
        Of the next one.
    """

    options: ChildReport
    signature: ChildReport
    damaged: ChildReport
    damage: list[str]
    killed: ChildReport
    after: ChildReport


class CachingChecks:
    """Ahead-of-time builds: what was left by another build, a disk or a kill is not mistaken."""

    def test_other_options_are_another_build(self, kit: BuilderKit) -> None:
        """The same sources with other compile options are not taken from the cache."""
        report = _reports(kit).options
        refused = bool((report.report.get("error") or {}).get("build_error"))
        require(
            refused or not report.problem,
            f"with other compile options, building raised {report.headline}",
            why="the judge does not see that it is the options that are wrong",
            fix="raise BuildError for options that the compiler refuses; or give the case "
            "other_options that your compiler takes",
        )
        require(
            refused or report.compiled,
            f"the solution with other compile options ({kit.case.options_text}) got the build "
            "without them: no compiler ran",
            why="two variants of a solution would be benchmarked as one",
            fix="name folders after builder.build_path(definition, solution, …): its digest covers "
            "the whole build specification, not only the sources",
        )

    def test_another_signature_is_another_build(self, kit: BuilderKit) -> None:
        """The same sources for a definition with one more constant axis are built anew."""
        report = _reports(kit).signature
        require(
            not report.problem and report.compiled,
            "built for a definition with one more constant axis: "
            + (report.headline or "no compiler ran, the build for the other one was taken"),
            why="axes and types may be compiled in, or decide how a call is made: a definition "
            "that was corrected would go on with the old build",
            fix="name folders after builder.build_path(definition, solution, …): its digest covers "
            "the definition's signature",
        )

    def test_a_damaged_library_is_noticed(self, kit: BuilderKit) -> None:
        """When some bytes in the middle of the libraries are others, they are compiled again."""
        reports = _reports(kit)
        if not reports.damage:
            skip(
                "no file in the cache looks like a library: name the files that are loaded in "
                "the case's `libraries`"
            )
        report = reports.damaged
        wrong = report.headline or kit.difference_in(report)
        wrong = wrong or ("" if report.compiled else "no compiler ran")
        require(
            not wrong,
            f"built again after damage to {', '.join(reports.damage)}: {wrong}",
            why="a disk that was full, or a copy that was cut off, makes a correct solution crash "
            "or be wrong for ever",
            fix="keep size and digest of the library beside it, and check them in the `sound` of "
            "toolkit.build_once; CompiledBuilder does",
        )

    def test_a_killed_build_is_not_taken_for_a_result(self, kit: BuilderKit) -> None:
        """After a kill in the middle of a build, the next one begins anew and is right."""
        reports = _reports(kit)
        if reports.killed.status == 0:
            skip("the build went through without starting a compiler as its own child process")
        report = reports.after
        wrong = report.headline or kit.difference_in(report)
        require(
            not wrong,
            f"after a build that was killed when it started a compiler, the next one: {wrong}",
            why="the benchmark kills builds that take too long, and people press Ctrl-C",
            fix="fill a folder with toolkit.build_once, which gives it its name when it is done",
        )


def _reports(kit: BuilderKit) -> CacheReports:
    """Return the reports, made once for the class; skip the test where they say nothing."""
    if not kit.case.compiles:
        skip("the record does not say compiles=True: nothing is left for other processes")
    kit.build_good()
    if all(report.problem for report in kit.observed()):
        skip(f"no build in a process of its own succeeded: {_SEE_OWN}")
    runs = max(len(report.compiled) for report in kit.observed())
    if not runs:
        skip("no process starts a compiler to build the solution, so that none can be counted")
    return kit.keep("caching", lambda: _observe(kit, runs))


def _observe(kit: BuilderKit, runs: int) -> CacheReports:
    copy = kit.cache.with_name(f"{kit.cache.name}-damaged")
    shutil.copytree(kit.cache, copy, symlinks=True)
    damage = _damage(copy, kit.case.libraries)
    empty = kit.cache.with_name(f"{kit.cache.name}-killed")
    case, solution = kit.case, kit.solution
    tasks = [
        ChildTask(case.definition, with_options(solution, case.options), kit.cache),
        ChildTask(with_constant(case.definition), solution, kit.cache),
        ChildTask(case.definition, solution, copy),
        # As late as can be told: some of the result may be there.
        ChildTask(case.definition, solution, empty, kill_at=runs),
    ]
    options, signature, damaged, killed = kit.run(tasks)
    (after,) = kit.run([ChildTask(case.definition, solution, empty)])
    for folder in (copy, empty):
        shutil.rmtree(folder, ignore_errors=True)
    return CacheReports(options, signature, damaged, damage, killed, after)


def _damage(cache: Path, libraries: str) -> list[str]:
    """Change bytes in all libraries below `cache`, and nothing that `stat` shows."""
    found = []
    for path in sorted(cache.rglob("*")):
        if path.is_symlink() or not path.is_file() or not _is_library(path, libraries):
            continue
        status = path.stat()
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        middle = slice(len(content) // 2, len(content) // 2 + _DAMAGED_BYTES)
        content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
        path.write_bytes(content)
        path.chmod(status.st_mode)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        found.append(path.name)
    return sorted(set(found))


def _is_library(path: Path, libraries: str) -> bool:
    if libraries:
        return fnmatch(path.name, libraries)
    with path.open("rb") as file:
        return b"\0" in file.read(_TRIED)
