"""The suite for builders."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from fib_testing.builder_kit import (
    MISSING,
    BuilderCase,
    BuilderKit,
    with_constant,
    with_spec,
    with_unsafe_source,
)
from fib_testing.records import (
    RecordConformance,
    fail,
    in_short,
    must_work,
    raised_by,
    record_of,
    require,
    require_none,
)
from flashinfer_bench.errors import BuildError, FibError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_FOREIGN = "fib-conformance-no-such-language"
_LANGUAGES = ("python", "triton", "cuda", "cpp", "tilelang", _FOREIGN)
_MARK = "fib_conformance_escaped.txt"
_LONGEST_HEADLINE = 2000
_THREADS = 3
_DAMAGED_BYTES = 64
_TRIED = 4096


class BuilderConformance(RecordConformance):
    """The contract of builders.

    Subclass it in a test module, and give it a fixture ``case``.

    Examples
    --------
    ::

        class TestMojoBuilder(BuilderConformance):
            @pytest.fixture
            def case(self):
                definition = sample_definition()
                solution = make_solution(
                    definition, {"kernel.mojo": KERNEL}, "kernel.mojo::run", language="mojo"
                )
                (record,) = fib_builder_mojo.fib_register_builders()
                return BuilderCase(record=record, definition=definition, solution=solution)
    """

    kind: ClassVar[str] = "builder"
    case_type: ClassVar[type] = BuilderCase

    @pytest.fixture
    def kit(
        self,
        given: BuilderCase,
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[BuilderKit]:
        """Return the kit of the case; all tests of the class share its cache."""
        kit = BuilderKit(self, given, request, tmp_path_factory)
        yield kit
        kit.close_all()

    @pytest.fixture
    def cached(self, kit: BuilderKit) -> dict[str, Any]:
        """Return reports of processes with a used cache; skip the test if they are inconclusive.

        Reports by the content of the cache: ``options`` or ``signature``, the same sources with
        other ones; ``damaged`` libraries, with their names in ``damage``; ``after`` a build that
        was ``killed``.
        """
        _skip_unless_compiled(kit)
        kit.observed_to_the_end()
        runs = max(len(report.compiler_runs()) for report in kit.observed())
        if not runs:
            started = {name for one in kit.observed() for name in one.report.get("programs", ())}
            programs = ", ".join(sorted(started)) or "no programs"
            pytest.skip(f"no compiler recognised, the build starts {programs}: see `compilers`")
        reports: dict[str, Any] = kit.keep("caching", lambda: _observe_caching(kit, runs))
        return reports

    # ------------------------------------------------------------- inputs and results

    def test_its_names_in_the_cache_are_safe(self, kit: BuilderKit) -> None:
        """The prefix is an identifier, and the folder a single name.

        Why it matters: names of modules and libraries begin with the prefix; with another folder,
        builds would be stored outside of their folder in the cache.

        To do: use letters, digits and underscores for the prefix, and name one folder, the same for
        all versions of the builder.
        """
        builder = kit.builder()
        prefix, folder = builder.package_prefix, builder.build_dir_name
        require(prefix.isidentifier(), f"package_prefix {prefix!r} is not an identifier")
        single = len(PurePosixPath(folder).parts) == len(PureWindowsPath(folder).parts) == 1
        require(
            single and folder not in {".", ".."} and ":" not in folder,
            f"build_dir_name {folder!r} is not a single folder name",
        )

    def test_the_record_handles_the_solution(self, kit: BuilderKit) -> None:
        """The record's languages and bindings cover the correct solution.

        Why it matters: builders are chosen by their records, so it would not get the solution.

        To do: add the pair to handles; ("language", "*") takes every binding.
        """
        record, spec = record_of(kit.case), kit.solution.spec
        require(
            record.accepts(str(spec.language), spec.binding),
            f"the record handles {record.handles}, but the solution is "
            f"({str(spec.language)!r}, {spec.binding!r})",
        )

    def test_can_build_accepts_its_own_language(self, kit: BuilderKit) -> None:
        """`can_build` is true for the correct solution.

        Why it matters: otherwise the registry tries the next builder.

        To do: compare solution.spec.language, which is in lower case, and the binding.
        """
        require(
            kit.builder().can_build(kit.solution),
            f"can_build is false for {kit.solution.name!r}, the correct solution",
        )

    def test_can_build_refuses_foreign_languages(self, kit: BuilderKit) -> None:
        """`can_build` is false for languages that are not in a record of the builder.

        Why it matters: otherwise it gets solutions that belong to another builder.

        To do: return solution.spec.language == your language.
        """
        own, builder = kit.languages(), kit.builder()
        foreign = [language for language in _LANGUAGES if language not in own]
        solutions = {name: with_spec(kit.solution, language=name) for name in foreign}
        taken = [name for name, solution in solutions.items() if builder.can_build(solution)]
        require(not taken, f"can_build is true for solutions in {', '.join(taken)}")

    def test_the_solution_builds(self, kit: BuilderKit) -> None:
        """`build` returns a Runnable for the correct solution.

        Why it matters: users get no runnable from a correct solution.

        To do: fix the builder, or the case if its solution is not correct. Return
        Runnable(function, RunnableMetadata(...), cleaner).
        """
        from flashinfer_bench.compile import Runnable

        _require_built(raised_by(kit.build), kit.solution.name)
        made: Any = kit.build()
        require(
            isinstance(made, Runnable), f"build returned a {type(made).__name__}, not a Runnable"
        )

    def test_the_metadata_are_complete(self, kit: BuilderKit) -> None:
        """The runnable's metadata identify the build and contain the definition.

        Why it matters: traces record the build from them, and calls by name need the definition.

        To do: fill in RunnableMetadata from the given definition and solution.
        """
        metadata = kit.build_good().metadata
        names = {"definition_name": kit.case.definition.name, "solution_name": kit.solution.name}
        wrong = [
            f"{name} is {getattr(metadata, name)!r}, not {value!r}"
            for name, value in names.items()
            if getattr(metadata, name) != value
        ]
        wrong += ["build_type is empty"] if not metadata.build_type else []
        wrong += ["definition is None"] if metadata.definition is None else []
        require(not wrong, f"the runnable's metadata: {'; '.join(wrong)}")

    def test_the_declared_convention_is_kept(self, kit: BuilderKit) -> None:
        """A solution that states its calling convention is called that way.

        Why it matters: the function would be called with the wrong arguments.

        To do: copy it to RunnableMetadata; toolkit.declared_style and choose_style distinguish it
        from the default.
        """
        solutions = [s for s in (kit.solution, kit.case.other_style) if s is not None]
        stated = [s for s in solutions if "destination_passing_style" in s.spec.model_fields_set]
        if not stated:
            pytest.skip("no solution of the case states destination_passing_style")
        for solution in stated:
            if kit.error_of(solution) is not None:
                pytest.skip("a solution does not build: see test_the_other_convention")
            declared = solution.spec.destination_passing_style
            told = kit.build(solution).metadata.destination_passing_style
            require(
                told is declared,
                f"{solution.name!r} states destination_passing_style={declared}, but the metadata "
                f"say {told}",
            )

    # -------------------------------------------------------------------------- calls

    def test_every_call_gives_what_the_reference_does(self, kit: BuilderKit) -> None:
        """By position and by name, with outputs returned or written, and repeatedly.

        Why it matters: a correct solution would be judged as wrong. Callers distinguish the
        conventions by what is returned.

        To do: set the definition and the right destination_passing_style in the metadata; check
        the parameters of the built function (inputs in the definition's order, then outputs; in
        that style it returns nothing) and strides; keep no state between calls. If the arithmetic
        is less precise, set rtol and atol in the case.
        """
        runnable = kit.build_good()
        inputs = kit.case.make_inputs()
        named = dict(zip(kit.case.definition.inputs, inputs, strict=True))

        def by_position() -> Any:
            if not runnable.metadata.destination_passing_style:
                return runnable(*inputs)
            given = kit.arguments()
            result = runnable(*given)
            found = f"a destination-passing function returned a {type(result).__name__}"
            require(result is None, found)
            return tuple(given[len(inputs) :])

        calls: dict[str, Callable[[], Any]] = {
            "runnable(*arguments)": by_position,
            "runnable(**inputs)": lambda: runnable(**dict(reversed(list(named.items())))),
            "call_value_returning(*inputs)": lambda: runnable.call_value_returning(*inputs),
            "call_destination_passing(*inputs, *outputs)": lambda: kit.outputs_of(runnable),
            "the same call again": lambda: kit.outputs_of(runnable),
        }
        for what, call in calls.items():
            with must_work(what):
                result = call()
            _require_same(kit, result, what)

    def test_the_other_convention(self, kit: BuilderKit) -> None:
        """The case's solution with the other convention gives the same results.

        Why it matters: users get no runnable from a correct solution, or a wrong one.

        To do: call the function as the solution states; see toolkit.choose_style.
        """
        other = kit.case.other_style
        if other is None:
            pytest.skip("the case has no solution with the other convention (other_style)")
        _require_built(kit.error_of(other), other.name)
        with must_work("the call"):
            outputs = kit.outputs_of(kit.build(other))
        _require_same(kit, outputs, f"{other.name!r}, the other convention,")

    # ----------------------------------------------------- solutions that must not build

    def test_a_missing_entry_symbol_is_a_build_error(self, kit: BuilderKit) -> None:
        """An entry point whose symbol is missing in the sources is a BuildError.

        Why it matters: the judge records a BuildError as COMPILE_ERROR, with its log; other errors
        look like a bug of the builder, and a build that succeeds fails later, elsewhere.

        To do: check the symbol when building, and raise a BuildError that says which symbol is
        missing in which file.
        """
        kit.build_good()
        error = kit.error_of(kit.symbol_missing)
        _require_build_error(error, f"a solution whose entry symbol {MISSING!r} does not exist")
        require(
            MISSING in str(error) + getattr(error, "log", ""),
            f"the error does not name the missing symbol: {error}",
        )

    def test_garbage_is_a_build_error(self, kit: BuilderKit) -> None:
        """An entry file that is not a valid program is a BuildError.

        Why it matters: the judge records a BuildError as COMPILE_ERROR, with its log; other errors
        look like a bug of the builder.

        To do: check the exit status, and raise BuildError (toolkit.build_failed makes one from a
        compiler's output).
        """
        _require_build_error(kit.error_of(kit.garbage), "a solution that is not a program")

    def test_a_build_error_tells_what_is_needed(self, kit: BuilderKit) -> None:
        """A one-line message that names the solution, the whole log, and support for pickling.

        Why it matters: the message is shown in a table with those of other solutions; the log is
        all that the author of the solution gets; tools that build in worker processes lose errors
        that cannot be pickled, or hang.

        To do: raise BuildError itself, with a message that begins with: solution 'name': …, and the
        compiler's whole output, or the traceback, as its log. toolkit.build_failed(name, what, log)
        makes the first error the headline.
        """
        error = kit.error_of(kit.garbage)
        if not isinstance(error, BuildError):
            pytest.skip("no BuildError to check: see test_garbage_is_a_build_error")
        message, wrong = error.message, []
        if "\n" in message or not 0 < len(message) <= _LONGEST_HEADLINE:
            wrong.append(f"the message is not a line of at most {_LONGEST_HEADLINE}: {message!r}")
        if kit.solution.name not in message:
            wrong.append(f"the message does not name the solution: {message!r}")
        if not error.log.strip():
            wrong.append(f"the log is empty: {message}")
        try:
            copy = pickle.loads(pickle.dumps(error))
            if (type(copy), str(copy), copy.log) != (type(error), str(error), error.log):
                wrong.append(f"after pickling, it is {copy!r} instead of {error!r}")
        except Exception as failure:  # noqa: BLE001 - a plugin's code may raise anything
            wrong.append(f"pickling it raised {in_short(failure)}")
        require_none(wrong, "the error of a solution that is not a program")

    def test_paths_that_leave_the_folder_are_refused(self, kit: BuilderKit, tmp_path: Path) -> None:
        """A source file with ``..`` or an absolute path is an error, and is not written.

        Why it matters: an untrusted solution could overwrite any file of the user.

        To do: write sources with toolkit.write_sources, which checks all paths first.
        """
        wrong = []
        for path in (f"../{_MARK}", f"a/../../{_MARK}", str(tmp_path / _MARK)):
            solution = with_unsafe_source(kit.solution, path, f"written by way of {path}\n")
            error = kit.error_of(solution)
            if not isinstance(error, FibError):
                wrong.append(f"{path!r}: {'no error' if error is None else in_short(error)}")
        escaped = [*tmp_path.rglob(_MARK), *kit.cache.rglob(_MARK)]
        wrong += [f"it was written to {file}" for file in escaped]
        for file in escaped:
            file.unlink()
        require_none(wrong, "source files outside of the solution's folder")

    def test_a_failed_build_spoils_nothing(self, kit: BuilderKit) -> None:
        """After a failure the same builder builds the correct solution.

        Why it matters: one broken solution would break all later ones.

        To do: keep nothing of a failed build, neither in memory nor in the cache.
        """
        builder = kit.builder()
        raised_by(kit.build_good(builder).cleanup)
        for broken in (kit.garbage, kit.symbol_missing):
            kit.error_of(broken, builder)
            error = kit.error_of(kit.solution, builder)
            require(
                error is None,
                f"after a failed build the correct solution does not build: {error}",
            )

    def test_the_author_s_failing_solutions(self, kit: BuilderKit) -> None:
        """Each of `BuilderCase.failing` fails with the expected text.

        Why it matters: according to the case, users need that text to find their mistake.

        To do: fix the builder, or the text that the case expects.
        """
        if not kit.case.failing:
            pytest.skip("the case has no further solutions that must fail (failing)")
        kit.build_good()
        wrong = []
        for each in kit.case.failing:
            error = kit.error_of(each.solution)
            if not isinstance(error, BuildError):
                found = "no error" if error is None else in_short(error)
                wrong.append(f"{each.solution.name!r}: {found}, not a BuildError")
            elif each.expect not in f"{error}\n{error.log}":
                wrong.append(f"{each.solution.name!r}: {each.expect!r} is not in: {error}")
        require_none(wrong, "solutions that must fail")

    # -------------------------------------------- effects on other builds and the process

    def test_cleaning_up(self, kit: BuilderKit) -> None:
        """`Runnable.cleanup` does not raise, even if called twice; the solution builds again.

        Why it matters: registry, benchmark and user may each clean up, and a cleared registry
        builds again on demand.

        To do: ignore files that no longer exist (shutil.rmtree, ignore_errors=True), and remove
        nothing that a later build needs.
        """
        builder = kit.builder()
        runnable = kit.build_good(builder)
        with must_work("cleaning up"):
            runnable.cleanup()
            runnable.cleanup()
        with must_work("building again after cleaning up"):
            kit.outputs_of(kit.build(by=builder))

    def test_cleaning_one_build_leaves_others_alone(self, kit: BuilderKit) -> None:
        """Of two builds of one solution, the second works after the first is cleaned up.

        Why it matters: two registries, or two threads, may use the same solution.

        To do: clean up only what belongs to the build; shared files stay in the cache.
        """
        builder = kit.builder()
        first, second = kit.build_good(builder), kit.build_good(builder)
        if first is second:
            pytest.skip("the builder returned the same object for both builds")
        kit.outputs_of(second)
        raised_by(first.cleanup)
        with must_work("after cleaning up another build of the same solution, a call"):
            kit.outputs_of(second)

    def test_other_content_is_another_build(self, kit: BuilderKit) -> None:
        """A solution of the same name and file names with other content is built separately.

        Why it matters: two versions of a solution would be benchmarked as one.

        To do: name folders and modules after toolkit.content_digest, not after the solution.
        """
        builder = kit.builder()
        kit.build_good(builder)
        require(
            kit.error_of(kit.garbage, builder) is not None,
            "a solution that is not a program was built: it got the result of another solution "
            "with the same name and the same file names",
        )

    def test_two_solutions_do_not_share_results(self, kit: BuilderKit) -> None:
        """The case's twin gives another result, before and after the solution is called.

        Why it matters: one of them would be benchmarked under the other's name.

        To do: name modules, libraries and exported symbols after toolkit.content_digest.
        """
        if kit.case.twin is None:
            pytest.skip("the case has no second solution with the same file names (twin)")
        builder = kit.builder()
        first, twin = kit.build_good(builder), kit.build(kit.case.twin, builder)
        wrong = []
        for turn in ("first", "second"):
            difference = kit.difference(kit.outputs_of(first))
            wrong += [f"{turn} call of the solution: {difference}"] if difference else []
            if not kit.difference(kit.outputs_of(twin)):
                wrong.append(f"{turn} call of its twin: the solution's own result")
        require_none(wrong, "two solutions with the same file names, built by one builder")

    def test_a_process_of_its_own(self, kit: BuilderKit) -> None:
        """It builds with an empty home folder, an empty cache and another working directory.

        Why it matters: solutions are always built and called in separate processes.

        To do: depend only on the definition, the solution and FIB_CACHE_PATH.
        """
        kit.build_good()
        reports = kit.observed()
        require(
            not all(report.problem for report in reports),
            f"building in a new process failed: {reports[0].problem}",
        )
        difference = kit.difference(kit.observed_to_the_end().outputs)
        require(not difference, f"built and called in a new process: {difference}")

    def test_a_build_leaves_all_as_it_was(self, kit: BuilderKit) -> None:
        """A build prints nothing, does not change the process, and writes only to the cache.

        Why it matters: builds run in the user's program, which depends on directories, paths,
        variables and settings of torch; standard output is data, and `fib … --json` would not be
        JSON; users configure one folder for generated files, and clean up only there.

        To do: capture the output of compilers, for the log. Pass directories and variables to
        subprocesses (cwd=, env=). Write to builder.build_dir or toolkit.scratch_folder. If a
        library causes it and you cannot prevent that, list it in the case's `tolerates`.
        """
        observed, known = kit.observed_to_the_end(), tuple(kit.case.tolerates)
        printed = observed.report.get("stdout")
        found = [f"standard output: {observed.stdout[:500]!r}"] if printed else []
        changed = observed.report["changes"].items()
        found += [f"{name}: {text}" for name, text in changed if name not in known]
        found += [f"written outside: {path}" for path in observed.report["stray_sources"]]
        found += [f"left behind: {path}" for path in observed.left if not path.startswith(known)]
        require_none(found, "a build had side effects")

    # ------------------------------------------ concurrent builds, and builds in the cache

    def test_threads_build_at_the_same_time(
        self, kit: BuilderKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Several threads, each with a registry, build one solution with an empty cache.

        Why it matters: registries of one process share the cache.

        To do: fill a folder with toolkit.build_once, and keep no state in the builder while
        building.
        """
        kit.build_good()
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
        wrong = _build_in_threads(kit)
        require_none(wrong, f"{_THREADS} threads that built the same solution at the same time")

    def test_processes_build_at_the_same_time(self, kit: BuilderKit) -> None:
        """Two processes build one solution with an empty cache; a compiler runs in one of them.

        Why it matters: simultaneous runs share the cache, and the second one should wait for the
        result of the first.

        To do: fill a folder with toolkit.build_once, which locks, renames, and checks the cache
        again once it has the lock.
        """
        kit.observed_to_the_end()
        reports = kit.observed()
        wrong = [report.headline for report in reports if report.problem]
        wrong += [difference for each in reports if (difference := kit.difference(each.outputs))]
        require_none(
            wrong, f"{len(reports)} processes that built the same solution at the same time"
        )
        ran = [_shown(runs) for each in reports if (runs := each.compiler_runs())]
        if kit.case.compiles and len(ran) > 1:
            require_none(ran, f"{len(ran)} processes ran a compiler for the same build")

    def test_what_is_in_the_cache_needs_no_compiler(self, kit: BuilderKit) -> None:
        """Ahead-of-time builds: a process loads what another one has compiled.

        Why it matters: `fib build` and the benchmark compile in advance, in other processes, on
        idle cores.

        To do: check for the finished folder first (toolkit.build_once, toolkit.is_complete).
        """
        _skip_unless_compiled(kit)
        kit.observed_to_the_end()
        (again,) = kit.run(kit.task())
        runs = {
            "build after compile, in the same process": [
                run for report in kit.observed() for run in report.compiler_runs("build")
            ],
            "compile in another process": again.compiler_runs("compile"),
            "build in another process": again.compiler_runs("build"),
        }
        wrong = [f"{where}: {_shown(ran)}" for where, ran in runs.items() if ran]
        wrong += [again.headline] if again.problem else []
        require_none(wrong, "a compiler ran although the result was in the cache")

    def test_other_options_are_another_build(self, kit: BuilderKit, cached: dict[str, Any]) -> None:
        """The same sources with other compile options are not taken from the cache.

        Why it matters: two variants of a solution would be benchmarked as one.

        To do: name folders after builder.build_path(definition, solution, …): its digest covers the
        whole build specification, not only the sources. Raise BuildError for options that the
        compiler rejects; or set other_options in the case to some that it accepts.
        """
        report = cached["options"]
        if (report.report.get("error") or {}).get("build_error"):
            return  # rejecting them is allowed
        require(
            not report.problem, f"with other compile options, building raised {report.headline}"
        )
        options = kit.case.options.model_dump_json(exclude_defaults=True)
        require(
            report.compiler_runs(),
            f"the solution with other compile options ({options}) got the build without them: no "
            "compiler ran",
        )

    def test_another_signature_is_another_build(self, cached: dict[str, Any]) -> None:
        """The same sources for a definition with one more constant axis are built again.

        Why it matters: axes and types may be compiled in, or affect how a call is made; after a
        correction of the definition, the old build would be used.

        To do: name folders after builder.build_path(definition, solution, …): its digest covers the
        definition's signature.
        """
        report = cached["signature"]
        require(
            not report.problem and report.compiler_runs(),
            "built for a definition with one more constant axis: "
            + (report.headline or "no compiler ran; the build for the other one was used"),
        )

    def test_a_damaged_library_is_noticed(self, kit: BuilderKit, cached: dict[str, Any]) -> None:
        """Libraries with changed bytes are compiled again.

        Why it matters: after a full disk or a truncated copy, a correct solution would crash or be
        wrong forever.

        To do: store size and digest of the library with it, and check them in the `sound` of
        toolkit.build_once, as CompiledBuilder does.
        """
        damage, report = cached["damage"], cached["damaged"]
        if not damage:
            pytest.skip(
                "no file in the cache looks like a library: set a pattern for the loaded files in "
                "the case's `libraries`"
            )
        wrong = report.headline or kit.difference(report.outputs)
        wrong = wrong or ("" if report.compiler_runs() else "no compiler ran")
        require(not wrong, f"built again after damage to {', '.join(damage)}: {wrong}")

    def test_a_killed_build_is_not_taken_for_a_result(
        self, kit: BuilderKit, cached: dict[str, Any]
    ) -> None:
        """After a build is killed, the next one starts again and is correct.

        Why it matters: the benchmark kills builds that take too long, and users press Ctrl-C.

        To do: fill a folder with toolkit.build_once, which renames it when it is complete.
        """
        if cached["killed"].status == 0:
            pytest.skip(
                "the build went through without starting a compiler as its own child process"
            )
        wrong = cached["after"].headline or kit.difference(cached["after"].outputs)
        require(
            not wrong,
            f"after a build was killed as it started a compiler, the next one: {wrong}",
        )


def _skip_unless_compiled(kit: BuilderKit) -> None:
    if not kit.case.compiles:
        pytest.skip("the record does not have compiles=True: builds are not stored")


def _shown(runs: list[list[str]]) -> str:
    return " ".join(runs[0])[:300]


def _require_built(error: BaseException | None, name: str) -> None:
    if error is not None:
        log = getattr(error, "log", "")
        fail(f"building {name!r} raised {type(error).__name__}: {error}\n{log[-1500:]}")


def _require_build_error(error: BaseException | None, what: str) -> None:
    found = "was built" if error is None else f"raised {in_short(error)}"
    require(isinstance(error, BuildError), f"{what} {found}; expected a BuildError")


def _require_same(kit: BuilderKit, result: Any, call: str) -> None:
    from flashinfer_bench.compile import list_outputs

    difference = kit.difference(list_outputs(result, kit.case.definition))
    require(not difference, f"{call} differs from the definition's reference: {difference}")


def _build_in_threads(kit: BuilderKit) -> list[str]:
    from flashinfer_bench.compile import BuilderRegistry

    barrier = threading.Barrier(_THREADS)
    wrong: list[str] = []
    made: list[list[Any]] = []

    def build(builder: Any, arguments: list[Any]) -> None:
        registry = BuilderRegistry((builder,))
        barrier.wait()
        try:
            runnable = registry.build(kit.case.definition, kit.solution)
            runnable.call_destination_passing(*arguments)
            made.append(arguments[len(kit.case.definition.inputs) :])
        except BaseException as error:  # noqa: BLE001 - a plugin's code, in a thread
            wrong.append(in_short(error))
        finally:
            registry.cleanup()

    threads = [
        threading.Thread(target=partial(build, kit.builder(), kit.arguments()))
        for _ in range(_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong + [difference for each in made if (difference := kit.difference(each))]


def _observe_caching(kit: BuilderKit, runs: int) -> dict[str, Any]:
    copy = kit.cache.with_name(f"{kit.cache.name}-damaged")
    shutil.copytree(kit.cache, copy, symlinks=True)
    damage = _damage(copy, kit.case.libraries)
    empty = kit.cache.with_name(f"{kit.cache.name}-killed")
    other = kit.case.options.model_dump(mode="json")
    tasks = {
        "options": kit.task(solution=with_spec(kit.solution, compile_options=other)),
        "signature": kit.task(definition=with_constant(kit.case.definition)),
        "damaged": kit.task(cache=copy),
        # As late as possible, when a part of the result may exist.
        "killed": kit.task(cache=empty, kill_at=runs),
    }
    reports: dict[str, Any] = dict(zip(tasks, kit.run(*tasks.values()), strict=True))
    (reports["after"],) = kit.run(kit.task(cache=empty))
    for folder in (copy, empty):
        shutil.rmtree(folder, ignore_errors=True)
    return {**reports, "damage": damage}


def _damage(cache: Path, libraries: str) -> list[str]:
    """Change bytes in all libraries in `cache`, but nothing that `stat` shows."""
    found = set()
    for path in sorted(cache.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        content = bytearray(path.read_bytes())
        if not (fnmatch(path.name, libraries) if libraries else b"\0" in content[:_TRIED]):
            continue
        status = path.stat()
        path.chmod(0o600)
        middle = slice(len(content) // 2, len(content) // 2 + _DAMAGED_BYTES)
        content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
        path.write_bytes(content)
        path.chmod(status.st_mode)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        found.add(path.name)
    return sorted(found)
