"""Checks of what builds do to one another, to the process and to the disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.testing.builders.variants import with_entry_content
from flashinfer_bench.testing.verdict import bullets, in_short, require, skip

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.testing.builders.kit import BuilderKit
    from flashinfer_bench.testing.children import ChildReport

_THREADS = 3
_SEE_OWN = "see test_a_process_of_its_own"


class CleanupChecks:
    """Runnables own what they hold, and only that."""

    def test_cleaning_up(self, kit: BuilderKit) -> None:
        """`Runnable.cleanup` raises nothing, neither the first time nor the second."""
        runnable = kit.build_good()
        error = _error(runnable.cleanup) or _error(runnable.cleanup)
        require(
            error is None,
            f"cleaning up raised {error}",
            why="registry, benchmark and user may each clean up",
            fix="let the cleaner ignore what is gone already (shutil.rmtree, ignore_errors=True)",
        )

    def test_cleaning_one_build_leaves_others_alone(self, kit: BuilderKit) -> None:
        """Of two builds of one solution, the second works when the first is cleaned up."""
        builder = kit.builder()
        first, second = kit.build_good(builder), kit.build_good(builder)
        if first is second:
            skip("the builder returned one object for both builds, which then is one build")
        kit.outputs_of(second)
        kit.close(first)
        error = _error(lambda: kit.outputs_of(second))
        require(
            error is None,
            f"after cleaning up another build of the same solution, a call raised {error}",
            why="two registries, or two threads, may hold the same solution",
            fix="clean up only what belongs to the one build; what is shared stays in the cache",
        )

    def test_building_again_after_cleaning_up(self, kit: BuilderKit) -> None:
        """A solution can be built again, by the same builder, when it was cleaned up."""
        builder = kit.builder()
        kit.close(kit.build_good(builder))
        error = _error(lambda: kit.outputs_of(kit.build(by=builder)))
        require(
            error is None,
            f"building again after cleaning up raised {error}",
            why="a registry that was cleared builds again when asked",
            fix="let the cleaner remove nothing that a later build needs",
        )


class IsolationChecks:
    """A build depends on its own sources, and touches nothing but the cache."""

    def test_other_content_is_another_build(self, kit: BuilderKit) -> None:
        """The same name and file names with other content are not taken for the same."""
        builder = kit.builder()
        kit.build_good(builder)
        broken = with_entry_content(kit.solution, kit.case.garbage)
        error = kit.error_of(broken, builder)
        require(
            error is not None,
            "a solution that is no program was built: it got the result of another solution with "
            "the same name and the same file names",
            why="two versions of a solution would be benchmarked as one",
            fix="name folders and modules after toolkit.content_digest, not after the solution",
        )

    def test_two_solutions_do_not_share_results(self, kit: BuilderKit) -> None:
        """The case's twin gives another result, before and after the first is called."""
        if kit.case.twin is None:
            skip("the case has no second solution with the same file names (twin)")
        builder = kit.builder()
        first = kit.build_good(builder)
        twin = kit.build(kit.case.twin, builder)
        wrong = []
        for turn in ("first", "second"):
            difference = kit.difference(kit.outputs_of(first))
            wrong += [f"{turn} call of the solution: {difference}"] if difference else []
            if not kit.difference(kit.outputs_of(twin)):
                wrong.append(f"{turn} call of its twin: the solution's own result")
        require(
            not wrong,
            "two solutions with the same file names, built by one builder:\n" + bullets(wrong),
            why="one of them would be benchmarked under the other's name",
            fix="name modules, libraries and exported symbols after toolkit.content_digest",
        )

    def test_building_prints_nothing(self, kit: BuilderKit) -> None:
        """Standard output stays empty."""
        report = _observed(kit)
        require(
            not report.report.get("stdout"),
            f"a build printed to standard output: {report.stdout[:500]!r}",
            why="standard output is data: `fib … --json` would not be JSON any more",
            fix="capture what compilers print, for the log; use the logging module for the rest",
        )

    def test_the_process_is_left_as_it_was(self, kit: BuilderKit) -> None:
        """A build changes no directory, path, variable, signal handler, filter or torch setting."""
        report = _observed(kit)
        found = [
            f"{name}: {text}"
            for name, text in report.report.get("changes", {}).items()
            if name not in kit.case.tolerates
        ]
        require(
            not found,
            "a build changed the process:\n" + bullets(found),
            why="it happens in the user's program, which relies on these",
            fix="pass directories and variables to subprocesses (cwd=, env=); restore the rest. If "
            "a library does it and you cannot help it, name it in the case's `tolerates`",
        )

    def test_sources_are_written_to_the_cache_only(self, kit: BuilderKit) -> None:
        """No file of a source's name is opened for writing outside of ``FIB_CACHE_PATH``."""
        found = _observed(kit).report.get("stray_sources", [])
        require(
            not found,
            "sources were written outside of the cache:\n" + bullets(found),
            why="users give one place for all that is generated, and clean up only there",
            fix="write below builder.build_dir, or into toolkit.scratch_folder",
        )

    def test_nothing_is_left_outside_of_the_cache(self, kit: BuilderKit) -> None:
        """When its process has ended, the other folders are as they were."""
        found = [
            place
            for place in _observed(kit).left
            if not any(place.startswith(known) for known in kit.case.tolerates)
        ]
        require(
            not found,
            "files were left behind:\n" + bullets(found),
            why="disks fill up, and nobody knows what may be deleted",
            fix="point the caches of libraries below builder.build_dir; remove temporary files. If "
            "a library does it and you cannot help it, name it in the case's `tolerates`",
        )


class ConcurrencyChecks:
    """Builds at the same time, and builds that others have made."""

    def test_threads_build_at_the_same_time(
        self, kit: BuilderKit, tmp_path: Path, monkeypatch: Any
    ) -> None:
        """Several threads, each with a registry, build one solution into an empty cache."""
        kit.build_good()
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
        wrong = _build_in_threads(kit)
        require(
            not wrong,
            f"{_THREADS} threads that built the same solution at the same time:\n" + bullets(wrong),
            why="registries of one process share the cache",
            fix="fill a folder with toolkit.build_once, and keep no state in the builder while "
            "building",
        )

    def test_processes_build_at_the_same_time(self, kit: BuilderKit) -> None:
        """Two processes build one solution into an empty cache; a compiler runs in one of them."""
        _observed(kit)
        reports = kit.observed()
        wrong = [report.headline for report in reports if report.problem]
        wrong += [d for report in reports if (d := kit.difference_in(report))]
        require(
            not wrong,
            f"{len(reports)} processes that built the same solution at the same time:\n"
            + bullets(wrong),
            why="runs are started side by side, and share the cache",
            fix="fill a folder with toolkit.build_once, which locks and renames",
        )
        runs = [[*each.compiler_runs("compile"), *each.compiler_runs("build")] for each in reports]
        ran = [" ".join(commands[0])[:300] for commands in runs if commands]
        require(
            not kit.case.compiles or len(ran) <= 1,
            f"{len(ran)} processes ran a compiler for the same build:\n{bullets(ran)}",
            why="the second one could have waited for the first one's result",
            fix="look into the cache again when the lock is held; toolkit.build_once does",
        )

    def test_what_is_in_the_cache_needs_no_compiler(self, kit: BuilderKit) -> None:
        """Ahead-of-time builds: what one process compiled, another one only loads."""
        if not kit.case.compiles:
            skip("the record does not say compiles=True: nothing is left for other processes")
        _observed(kit)
        first = [run for report in kit.observed() for run in report.compiler_runs("build")]
        again = kit.observed_again()
        runs = {
            "build after compile, in the same process": first,
            "compile in another process": again.compiler_runs("compile"),
            "build in another process": again.compiler_runs("build"),
        }
        wrong = [f"{where}: {' '.join(ran[0])[:300]}" for where, ran in runs.items() if ran]
        wrong += [again.headline] if again.problem else []
        require(
            not wrong,
            "a compiler ran although the result was in the cache:\n" + bullets(wrong),
            why="`fib build` and the benchmark compile ahead, in other processes, on idle cores",
            fix="look for the finished folder first (toolkit.build_once, toolkit.is_complete)",
        )


def _observed(kit: BuilderKit) -> ChildReport:
    """Return the report of a process that came to the end; skip the test if none did."""
    kit.build_good()
    reports = kit.observed()
    done = [report for report in reports if not report.problem]
    if not done:
        skip(f"no build in a process of its own succeeded ({reports[0].headline}): {_SEE_OWN}")
    return done[0]


class ProcessChecks:
    """A build in a process that has nothing to do with the tests."""

    def test_a_process_of_its_own(self, kit: BuilderKit) -> None:
        """It builds with an empty home folder, an empty cache and another working directory."""
        kit.build_good()
        reports = kit.observed()
        require(
            not all(report.problem for report in reports),
            f"building in a new process failed: {reports[0].problem}",
            why="solutions are always built in processes of their own",
            fix="rely on nothing but the definition, the solution and FIB_CACHE_PATH",
        )
        difference = kit.difference_in(_observed(kit))
        require(
            not difference,
            f"built and called in a new process: {difference}",
            why="solutions are always called in processes of their own",
            fix="rely on nothing but the definition, the solution and FIB_CACHE_PATH",
        )


def _build_in_threads(kit: BuilderKit) -> list[str]:
    from flashinfer_bench.compile import BuilderRegistry

    barrier = threading.Barrier(_THREADS)
    outputs: list[Optional[list[Any]]] = [None] * _THREADS
    wrong: list[str] = []
    builders = [kit.builder() for _ in range(_THREADS)]
    arguments = [kit.arguments() for _ in range(_THREADS)]
    inputs = len(kit.case.definition.inputs)

    def build(index: int) -> None:
        registry = BuilderRegistry((builders[index],))
        barrier.wait()
        try:
            runnable = registry.build(kit.case.definition, kit.solution)
            runnable.call_destination_passing(*arguments[index])
            outputs[index] = arguments[index][inputs:]
        except BaseException as error:  # noqa: BLE001 - a plugin's code, in a thread
            wrong.append(in_short(error))
        finally:
            registry.cleanup()

    threads = [threading.Thread(target=build, args=(index,)) for index in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [each for each in outputs if each is not None]
    return wrong + [d for each in made if (d := kit.difference(each))]


def _error(run: Any) -> Optional[str]:
    try:
        run()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's code may raise anything
        return in_short(error)
    return None
