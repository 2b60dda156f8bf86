"""Checks of a builder's interface: what it takes, and what its builds are."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from flashinfer_bench.testing.builders.kit import fail_unbuilt
from flashinfer_bench.testing.builders.variants import FOREIGN, with_language
from flashinfer_bench.testing.record_checks import require_constructible
from flashinfer_bench.testing.records import load_factory, spec_of
from flashinfer_bench.testing.verdict import fail, require, skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.testing.builders.kit import BuilderKit

_LANGUAGES = ("python", "triton", "cuda", "cpp", "tilelang", FOREIGN)


class InterfaceChecks:
    """What the registry, the benchmark and ``fib`` rely on when they meet a builder."""

    def test_the_factory_takes_what_it_is_given(self, kit: BuilderKit) -> None:
        """The host constructs builders itself, without arguments."""
        load_factory(kit.case)
        kit.require_available()
        require_constructible(kit.case.factory)

    def test_its_names_in_the_cache_are_safe(self, kit: BuilderKit) -> None:
        """The prefix is an identifier, and the folder a single name."""
        builder = kit.builder()
        prefix, folder = builder.package_prefix, builder.build_dir_name
        require(
            prefix.isidentifier(),
            f"package_prefix is {prefix!r}, which is no identifier",
            why="it begins the names of modules and libraries",
            fix="use letters, digits and underscores",
        )
        single = len(PurePosixPath(folder).parts) == len(PureWindowsPath(folder).parts) == 1
        require(
            single and folder not in {".", ".."} and ":" not in folder,
            f"build_dir_name is {folder!r}, which is not a single name",
            why="builds would land outside of their folder in the cache",
            fix="name one folder, the same for all versions of the builder",
        )

    def test_the_record_handles_the_solution(self, kit: BuilderKit) -> None:
        """The record's languages and bindings cover the correct solution."""
        spec_of(kit.case)
        assert kit.case.spec is not None
        language, binding = kit.solution.spec.language, kit.solution.spec.binding
        require(
            kit.case.spec.accepts(str(language), binding),
            f"the record handles {kit.case.spec.handles}, and the solution is "
            f"({str(language)!r}, {binding!r})",
            why="the host chooses builders by the record: this solution never comes to it",
            fix='add the pair to handles; ("language", "*") takes every binding',
        )

    def test_can_build_accepts_its_own_language(self, kit: BuilderKit) -> None:
        """`can_build` is true for the correct solution."""
        require(
            kit.builder().can_build(kit.solution),
            f"can_build says no to {kit.solution.name!r}, the correct solution",
            why="the registry passes on to the next builder",
            fix="compare solution.spec.language, which is in lower case, and the binding",
        )

    def test_can_build_refuses_foreign_languages(self, kit: BuilderKit) -> None:
        """`can_build` is false for every language that no record of the builder names."""
        own = kit.languages()
        builder = kit.builder()
        foreign = [language for language in _LANGUAGES if language not in own]
        taken = [name for name in foreign if builder.can_build(with_language(kit.solution, name))]
        require(
            not taken,
            f"can_build says yes to solutions in {', '.join(taken)}",
            why="it would be given solutions that belong to another builder",
            fix="return solution.spec.language == your language",
        )

    def test_the_solution_builds(self, kit: BuilderKit) -> None:
        """`build` returns a Runnable for the correct solution."""
        from flashinfer_bench.compile import Runnable

        try:
            made = kit.build()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's code
            fail_unbuilt(error, kit.solution)
        require(
            isinstance(made, Runnable),
            f"build returned a {type(made).__name__}, not a Runnable",
            why="nothing that meets it can call it",
            fix="return Runnable(function, RunnableMetadata(...), cleaner)",
        )

    def test_the_metadata_are_complete(self, kit: BuilderKit) -> None:
        """The runnable's metadata name the build, and hold the definition."""
        metadata, case = kit.build_good().metadata, kit.case
        wanted = {"definition_name": case.definition.name, "solution_name": kit.solution.name}
        wrong = [
            f"{name} is {getattr(metadata, name)!r}, not {value!r}"
            for name, value in wanted.items()
            if getattr(metadata, name) != value
        ]
        wrong += ["build_type is empty"] if not metadata.build_type else []
        wrong += ["definition is None"] if metadata.definition is None else []
        require(
            not wrong,
            f"the runnable's metadata: {'; '.join(wrong)}",
            why="traces tell the build by them, and calls by name need the definition",
            fix="fill in RunnableMetadata from the definition and the solution that came in",
        )

    def test_the_declared_convention_is_kept(self, kit: BuilderKit) -> None:
        """A solution that states its calling convention is called that way."""
        solutions = [s for s in (kit.solution, kit.case.other_style) if s is not None]
        stated = [s for s in solutions if "destination_passing_style" in s.spec.model_fields_set]
        if not stated:
            skip("no solution of the case states destination_passing_style")
        for solution in stated:
            runnable = _build_or_skip(kit, solution)
            declared = solution.spec.destination_passing_style
            require(
                runnable.metadata.destination_passing_style is declared,
                f"{solution.name!r} states destination_passing_style={declared}, and the metadata "
                f"say {runnable.metadata.destination_passing_style}",
                why="the function would be called with the wrong arguments",
                fix="take it over into RunnableMetadata; toolkit.declared_style and choose_style "
                "tell it apart from the default",
            )


def _build_or_skip(kit: BuilderKit, solution: Any) -> Runnable:
    if solution is kit.solution:
        return kit.build_good()
    try:
        return kit.build(solution)
    except (Exception, SystemExit):  # noqa: BLE001 - a plugin's code; another test reports it
        skip("the solution of the other convention does not build: see test_the_other_convention")


class CallChecks:
    """Calls in every convention give what the definition's reference gives."""

    def test_a_call_by_position(self, kit: BuilderKit) -> None:
        """``runnable(*arguments)``, as the built function takes them."""
        runnable = kit.build_good()
        if runnable.metadata.destination_passing_style:
            arguments = kit.arguments()
            result = _call(lambda: runnable(*arguments))
            outputs = arguments[len(kit.case.definition.inputs) :]
            require(
                result is None,
                f"a destination-passing function returned a {type(result).__name__}",
                why="callers tell the conventions apart by what is returned",
                fix="return nothing; or set destination_passing_style to false in the metadata",
            )
        else:
            outputs = _listed(kit, _call(lambda: runnable(*kit.case.make_inputs())))
        _require_same(kit, outputs, "runnable(*arguments)")

    def test_a_call_by_name(self, kit: BuilderKit) -> None:
        """``runnable(**inputs)``, by the names that the definition gives."""
        runnable = kit.build_good()
        named = dict(zip(kit.case.definition.inputs, kit.case.make_inputs(), strict=True))
        backwards = dict(reversed(list(named.items())))
        outputs = _listed(kit, _call(lambda: runnable(**backwards)))
        _require_same(kit, outputs, "runnable(**inputs)")

    def test_a_value_returning_call(self, kit: BuilderKit) -> None:
        """``runnable.call_value_returning(*inputs)``."""
        runnable = kit.build_good()
        result = _call(lambda: runnable.call_value_returning(*kit.case.make_inputs()))
        _require_same(kit, _listed(kit, result), "runnable.call_value_returning(*inputs)")

    def test_a_destination_passing_call(self, kit: BuilderKit) -> None:
        """``runnable.call_destination_passing(*inputs, *outputs)``."""
        runnable = kit.build_good()
        outputs = _call(lambda: kit.outputs_of(runnable))
        _require_same(kit, outputs, "runnable.call_destination_passing(*inputs, *outputs)")

    def test_a_second_call(self, kit: BuilderKit) -> None:
        """The result is the same when it is called again."""
        runnable = kit.build_good()
        _call(lambda: kit.outputs_of(runnable))
        outputs = _call(lambda: kit.outputs_of(runnable))
        _require_same(kit, outputs, "the second call of the runnable")

    def test_the_other_convention(self, kit: BuilderKit) -> None:
        """The case's solution of the other convention gives the same."""
        if kit.case.other_style is None:
            skip("the case has no solution of the other convention (other_style)")
        error = None
        try:
            runnable = kit.build(kit.case.other_style)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - a plugin's code
            error = raised
        if error is not None:
            fail_unbuilt(error, kit.case.other_style)
        outputs = _call(lambda: kit.outputs_of(runnable))
        _require_same(kit, outputs, f"{kit.case.other_style.name!r}, the other convention,")


def _call(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - a solution's code may raise anything
        fail(
            f"the call raised {type(error).__name__}: {error}",
            why="the correct solution can be built, but not called",
            fix="look at destination_passing_style in the metadata, and at what the built function "
            "takes: inputs in the definition's order, then outputs",
        )


def _listed(kit: BuilderKit, result: Any) -> list[Any]:
    from flashinfer_bench.compile import list_outputs

    return list_outputs(result, kit.case.definition)


def _require_same(kit: BuilderKit, outputs: list[Any], call: str) -> None:
    difference = kit.difference(outputs)
    require(
        not difference,
        f"{call} differs from the definition's reference: {difference}",
        why="a correct solution is judged as wrong",
        fix="look at the order of arguments, at strides, and at the calling convention; if the "
        "arithmetic allows for no more, give the case rtol and atol",
    )
