"""The suite for API adapters."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from flashinfer_bench.integration import PatchManager, PatchSpec, resolve
from flashinfer_bench.testing.adapter_kit import (
    AdapterCase,
    AdapterKit,
    StandIn,
    original_of,
    problems,
)
from flashinfer_bench.testing.record_checks import look, require_constructible, require_unchanged
from flashinfer_bench.testing.records import (
    RecordConformance,
    construct,
    factory_path,
    load_factory,
    require_available,
    spec_of,
)
from flashinfer_bench.testing.verdict import bullets, fail, in_short, require, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class AdapterConformance(RecordConformance):
    """All that an API adapter must keep to.

    Subclass it in a test module, and give it a fixture ``case`` that returns an `AdapterCase`.
    """

    kind: ClassVar[str] = "adapter"
    case_type: ClassVar[type] = AdapterCase

    @pytest.fixture
    def kit(self, given: AdapterCase) -> AdapterKit:
        """Give the case and a new adapter, also where the library is not installed."""
        return AdapterKit(given, construct(given))

    def libraries(self, given: AdapterCase) -> tuple[str, ...]:
        """Return the libraries that are patched, which neither plugin nor probe may import."""
        targets = getattr(given.record, "targets", ())
        return tuple(sorted({path.partition(".")[0] for path in targets}))

    def test_the_factory_takes_what_it_is_given(self, given: AdapterCase) -> None:
        """The host constructs adapters itself, without arguments, with the library or without."""
        load_factory(given)
        require_constructible(factory_path(given))

    def test_making_it_does_not_import_the_library(self, given: AdapterCase) -> None:
        """The library is the user's, who imports it when and if they like."""
        path = factory_path(given)
        load_factory(given)
        libraries = self.libraries(given) or ("flashinfer",)
        step = look(construct=path, libraries=libraries)["construct"]
        imported = sorted(set(step["heavy"]) & set(libraries))
        require(
            not imported,
            f"{path}() imports {', '.join(imported)}",
            why="importing it takes seconds, and may make a device context",
            fix="name targets by string, and import in the wrapper if at all",
        )
        if not step["error"]:  # which test_the_factory… reports
            require_unchanged(f"{path}()", step)

    def test_its_targets_are_the_record_s(self, kit: AdapterKit) -> None:
        """`targets` returns PatchSpecs, the same each time, for the paths in the record."""
        try:
            found, again = list(kit.adapter.targets()), list(kit.adapter.targets())
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            fail(
                f"targets raised {in_short(error)}",
                why="nobody knows what is to be patched",
                fix="return a tuple of PatchSpec, without looking at the library",
            )
        named = getattr(kit.case.record, "targets", ())
        late = {path for path in named if path.endswith(".*")}
        require(
            (found or late) and all(isinstance(each, PatchSpec) for each in found),
            f"targets returned {found!r}",
            why="nobody knows what is to be patched",
            fix="return a tuple of PatchSpec; empty only if the record names 'library.*' for "
            "late_targets",
        )
        require(
            found == again,
            f"targets returned {found}, and then {again}",
            why="what was patched is asked for again when it is listed",
            fix="let it depend on nothing",
        )
        paths = [spec.path for spec in found]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        require(
            not twice,
            f"targets names {', '.join(twice)} twice",
            why="a target wears one wrapper",
            fix="make one wrapper that does both",
        )
        listed = (set(named) or set(paths)) - late
        require(
            set(paths) == listed,
            f"only in targets: {sorted(set(paths) - listed)}; only in the record: "
            f"{sorted(listed - set(paths))}",
            why="`fib plugins show` tells users what is patched by the record",
            fix="write the same paths into both",
        )

    def test_its_targets_exist(self, kit: AdapterKit, request: pytest.FixtureRequest) -> None:
        """Each is there in the installed library, as what it says."""
        spec_of(kit.case)
        require_available(kit.case, request)
        wrong = []
        for spec in kit.targets():
            try:
                owner = resolve(spec.path).owner
            except Exception as error:  # noqa: BLE001 - the library may raise anything on import
                wrong.append(in_short(error))
            else:
                kind = "method" if isinstance(owner, type) else "function"
                wrong += [f"{spec.path} is a {kind}"] if kind != spec.kind else []
        require(
            not wrong,
            "targets of the installed library:\n" + bullets(wrong),
            why="calls would go past the adapter, unnoticed",
            fix="name what this version has; let the probe say no for versions that you do not "
            "know, with the versions that you do",
        )

    def test_it_wraps_each_target(self, kit: AdapterKit) -> None:
        """`make_wrapper` makes a new function for each target, and does not call the original."""
        wrong = []
        for spec in kit.targets():
            stand_in = StandIn(original_of(spec))
            try:
                wrapper = kit.adapter.make_wrapper(spec, stand_in.function)
            except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
                wrong.append(f"{spec.path}: it raised {in_short(error)}")
                continue
            wrong += [f"{spec.path}: {wrapper!r} is not callable"] * (not callable(wrapper))
            wrong += [f"{spec.path}: it is the original"] * (wrapper is stand_in.function)
            wrong += [f"{spec.path}: it called the original"] * bool(stand_in.calls)
        require(
            not wrong,
            "make_wrapper:\n" + bullets(wrong),
            why="the library cannot be patched, or calls go past the adapter",
            fix="return a function for each of `targets`, told apart by spec.name",
        )

    def test_a_wrapper_looks_like_the_original(self, kit: AdapterKit) -> None:
        """Name, documentation and signature are those of the original."""
        wrong = []
        for spec in kit.targets():
            stand_in, wrapper = kit.wrap(spec)
            original = stand_in.function
            for what in ("__name__", "__qualname__", "__module__", "__doc__"):
                if getattr(wrapper, what, None) != getattr(original, what, None):
                    wrong.append(f"{spec.path}: {what} is {getattr(wrapper, what, None)!r}")
            if _signature(wrapper) != _signature(original):
                wrong.append(f"{spec.path}: the signature is {_signature(wrapper)}")
        require(
            not wrong,
            "wrappers differ from the originals:\n" + bullets(wrong),
            why="callers, compilers and documentation look at these",
            fix="decorate the wrapper with functools.wraps(orig)",
        )

    def test_a_wrapper_passes_calls_through(self, kit: AdapterKit) -> None:
        """While nothing is enabled: one call, the same arguments, the same result."""
        wrong = []
        for spec in kit.targets():
            stand_in, wrapper = kit.wrap(spec)
            args, kwargs = kit.arguments(spec)
            for turn in ("first", "second"):
                stand_in.calls.clear()
                found = problems(stand_in, wrapper, args, kwargs)
                wrong += [f"{spec.path}, {turn} call: {problem}" for problem in found]
        require(
            not wrong,
            "wrappers, while neither apply nor tracing is enabled:\n" + bullets(wrong),
            why="a program that is patched and nothing else must not notice it",
            fix="return orig(*args, **kwargs), before looking at any argument",
        )

    def test_what_the_original_raises_goes_on(self, kit: AdapterKit) -> None:
        """The same exception, after one call."""
        wrong = []
        for spec, stand_in, wrapper in kit.sound():
            stand_in.error = ValueError("the original's own")
            args, kwargs = kit.arguments(spec)
            raised = _raised(wrapper, args, kwargs)
            if raised is not stand_in.error:
                wrong.append(f"{spec.path}: {raised!r} in place of {stand_in.error!r}")
            if len(stand_in.calls) != 1:
                wrong.append(f"{spec.path}: the original was called {len(stand_in.calls)} times")
        require(
            not wrong,
            "originals that raise:\n" + bullets(wrong),
            why="callers rely on it: FlashInfer's plan, for one, refuses a batch size by it",
            fix="call the original outside of any try block of the wrapper's own work",
        )

    def test_wrappers_do_not_share_originals(self, kit: AdapterKit) -> None:
        """Of two wrappers of one target each calls its own original."""
        for spec, first, wrapper in kit.sound():
            second, other = kit.wrap(spec)
            args, kwargs = kit.arguments(spec)
            _raised(other, args, kwargs)
            _raised(wrapper, args, kwargs)
            require(
                (len(first.calls), len(second.calls)) == (1, 1),
                f"{spec.path}: after one call of each of two wrappers, their originals were "
                f"called {len(first.calls)} and {len(second.calls)} times",
                why="a library may be patched, unpatched and patched again",
                fix="keep the original in the wrapper's closure, not on the adapter",
            )

    def test_patching_is_undone(self, given: AdapterCase, request: pytest.FixtureRequest) -> None:
        """In the installed library: on, on again, off, off again, and all is as it was."""
        paths = getattr(spec_of(given), "targets", ())
        require_available(given, request)
        before = {path: found for path in paths if (found := _stored(path)) is not None}
        adapter = construct(given)
        specs = [spec for spec in AdapterKit(given, adapter).targets() if spec.path in before]
        if not specs:
            skip("no target is installed: see test_its_targets_exist")
        manager = PatchManager()
        try:
            for spec in specs * 2:
                manager.patch(spec, adapter.make_wrapper)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            skip(f"make_wrapper raised {in_short(error)}: see test_it_wraps_each_target")
        finally:
            manager.unpatch_all()
            manager.unpatch_all()
        left = [path for path, found in before.items() if _stored(path) is not found]
        require(
            not left,
            f"after patching and unpatching, these are not what they were: {', '.join(left)}",
            why="disabling apply must leave no trace",
            fix="leave patching to the PatchManager: replace nothing in __init__, targets or "
            "make_wrapper",
        )


def _stored(path: str) -> Any:
    try:
        return resolve(path).found
    except Exception:  # noqa: BLE001 - the library may raise anything when it is imported
        return None


def _signature(function: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError) as error:
        return f"unknown ({error})"


def _raised(
    wrapper: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Optional[BaseException]:
    try:
        wrapper(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    return None
