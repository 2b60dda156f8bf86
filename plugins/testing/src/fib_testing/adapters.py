"""The suite for API adapters."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from fib_testing.records import (
    RecordCase,
    RecordConformance,
    construct,
    in_short,
    load_factory,
    look,
    must_work,
    raised_by,
    record_of,
    require,
    require_none,
    require_unchanged,
)
from fib_testing.sample_calls import Arguments, Effects, SampleCall, answered
from flashinfer_bench.routing import Adapter, PatchManager, PatchSpec, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SEE_TARGETS = "test_its_targets_are_the_record_s"
_SEE_WRAPS = "test_it_wraps_each_target"


@dataclass(frozen=True, kw_only=True)
class AdapterCase(RecordCase):
    """An adapter, and sample calls of its targets.

    The original functions are not run: stand-ins with their signatures are wrapped and called.

    Parameters
    ----------
    record : AdapterSpec or str
        The record that the plugin registers, or the path of the factory.
    arguments : mapping of str to callable
        By path of a target: returns positional and named arguments of a call, including the
        object of a method. Default: an object without properties for each parameter, which is
        enough for wrappers that pass calls through.
    calls : sequence of SampleCall
        Calls that solutions answer, in each form that the adapter supports (such as with ``out=``),
        and calls that must go to the original. Without any, substitution is not tested.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    arguments: Mapping[str, Callable[[], Arguments]] = field(default_factory=dict)
    calls: Sequence[SampleCall] = ()


class Token:
    """An argument without properties."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<argument {self._name}>"


class StandIn:
    """Replaces an original function: records calls, and returns one object or raises."""

    def __init__(self, spec: PatchSpec) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.result = Token("result")
        self.error: Optional[BaseException] = None

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((args, kwargs))
            if self.error is not None:
                raise self.error
            return self.result

        like = _part_of(spec.path, "function")
        self.function = functools.wraps(like)(stand_in) if like is not None else stand_in

    def differences(self, wrapper: Callable[..., Any], arguments: Arguments) -> list[str]:
        """Call a wrapper, and return differences from a call of the original."""
        args, kwargs = arguments
        self.calls.clear()
        try:
            result = wrapper(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            return [f"raised {in_short(error)}"]
        found = []
        if len(self.calls) != 1:
            found.append(f"the original was called {len(self.calls)} times")
        # The same objects, not equal ones.
        elif _identities(*self.calls[0]) != _identities(args, kwargs):
            found.append(f"the original was called with {self.calls[0]}")
        if result is not self.result:
            found.append(f"returned {result!r} instead of the original's result")
        return found


class AdapterKit:
    """A case and a new adapter."""

    def __init__(self, case: AdapterCase, adapter: Adapter) -> None:
        self.case = case
        self.adapter = adapter

    def targets(self) -> list[PatchSpec]:
        """Return the targets; skip the test if they are not PatchSpecs."""
        with must_work("targets", see=_SEE_TARGETS):
            found = list(self.adapter.targets())
        if not found or not all(isinstance(each, PatchSpec) for each in found):
            pytest.skip(f"targets returned something else: see {_SEE_TARGETS}")
        return found

    def wrap(self, spec: PatchSpec) -> tuple[StandIn, Callable[..., Any]]:
        """Return a stand-in for a target, and its wrapper; skip the test if there is none."""
        stand_in = StandIn(spec)
        with must_work("make_wrapper", see=_SEE_WRAPS):
            return stand_in, self.adapter.make_wrapper(spec, stand_in.function)

    def sound(self) -> Iterator[tuple[PatchSpec, StandIn, Callable[..., Any]]]:
        """Yield targets, stand-ins and wrappers; skip the test unless these pass calls through."""
        for spec in self.targets():
            stand_in, wrapper = self.wrap(spec)
            if stand_in.differences(wrapper, self.arguments(spec)):
                pytest.skip(f"{spec.path}: see test_a_wrapper_passes_calls_through")
            stand_in.calls.clear()
            yield spec, stand_in, wrapper

    def arguments(self, spec: PatchSpec) -> Arguments:
        """Return arguments for a call of a target; skip the test if there are none."""
        make = self.case.arguments.get(spec.path)
        if make is not None:
            return make()
        original = _part_of(spec.path, "function")
        if original is None:
            pytest.skip(f"{spec.path} is not installed, and the case has no arguments for it")
        parameters = inspect.signature(original).parameters.values()
        plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        required = [p for p in plain if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        named = [p for p in plain if p not in required and p.kind is not p.POSITIONAL_ONLY]
        return [Token(p.name) for p in required], {p.name: Token(p.name) for p in named}


class AdapterConformance(RecordConformance):
    """The contract of API adapters.

    Subclass it in a test module, and give it a fixture ``case`` that returns an `AdapterCase`.
    """

    kind: ClassVar[str] = "adapter"
    case_type: ClassVar[type] = AdapterCase

    @pytest.fixture
    def kit(self, given: AdapterCase) -> AdapterKit:
        """Return the kit of the case, even if the library is not installed."""
        return AdapterKit(given, construct(given))

    @pytest.fixture
    def libraries(self, given: AdapterCase) -> tuple[str, ...]:
        """Return the patched libraries, which neither plugin nor probe may import."""
        targets = getattr(given.record, "targets", ())
        return tuple(sorted({path.partition(".")[0] for path in targets}))

    def require_available(self, given: AdapterCase, request: pytest.FixtureRequest) -> None:
        """Adapters must be constructible even if the library is not installed."""

    def test_making_it_does_not_import_the_library(
        self, given: AdapterCase, libraries: tuple[str, ...]
    ) -> None:
        """Creating the adapter imports neither the library nor torch.

        Why it matters: importing them takes seconds, and may create a device context.

        To do: import nothing heavy at the top of the module or in __init__, name targets by string,
        and do not change the process.
        """
        load_factory(given)
        step = look("construct", given.factory, libraries)
        # torch imports other libraries, which need not be listed.
        imported = ", ".join(sorted({"torch", *libraries} & {*step["heavy"]}))
        require(not imported, f"creating the adapter imported {imported}; import it inside methods")
        if not step["error"]:  # reported by test_the_factory…
            require_unchanged("creating the adapter", step)

    def test_its_targets_are_the_record_s(self, kit: AdapterKit) -> None:
        """`targets` returns PatchSpecs, the same each time, for the paths in the record.

        Why it matters: `fib plugins show` lists the targets of the record, and targets are
        requested several times but wrapped once.

        To do: return a tuple of PatchSpec without inspecting the library, with the paths in the
        record, each of them once; empty only if the record names 'library.*' for late_targets.
        """
        with must_work("targets"):
            found, again = list(kit.adapter.targets()), list(kit.adapter.targets())
        named = getattr(kit.case.record, "targets", ())
        late = {path for path in named if path.endswith(".*")}
        sound = (found or late) and all(isinstance(each, PatchSpec) for each in found)
        require(sound, f"targets returned {found!r}")
        require(found == again, f"targets returned {found}, and then {again}")
        paths = [spec.path for spec in found]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        require(not twice, f"targets names {', '.join(twice)} twice")
        listed = (set(named) or set(paths)) - late
        require(
            set(paths) == listed,
            f"only in targets: {sorted(set(paths) - listed)}; only in the record: "
            f"{sorted(listed - set(paths))}",
        )

    def test_its_targets_exist(self, kit: AdapterKit, request: pytest.FixtureRequest) -> None:
        """Each target exists in the installed library and is of the stated kind.

        Why it matters: otherwise calls bypass the adapter unnoticed.

        To do: list targets of this version; for unsupported versions, let the probe return a
        reason that names the supported ones.
        """
        record_of(kit.case)
        super().require_available(kit.case, request)
        wrong = []
        for spec in kit.targets():
            try:
                owner = resolve(spec.path).owner
            except Exception as error:  # noqa: BLE001 - the library may raise anything on import
                wrong.append(in_short(error))
            else:
                kind = "method" if isinstance(owner, type) else "function"
                wrong += [f"{spec.path} is a {kind}"] if kind != spec.kind else []
        require_none(wrong, "targets of the installed library")

    def test_it_wraps_each_target(self, kit: AdapterKit) -> None:
        """`make_wrapper` returns a new function for each target without calling the original.

        Why it matters: otherwise the library cannot be patched, or calls bypass the adapter.

        To do: return a function for each of `targets`, which differ in spec.name.
        """
        wrong = []
        for spec in kit.targets():
            stand_in = StandIn(spec)
            try:
                wrapper = kit.adapter.make_wrapper(spec, stand_in.function)
            except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
                wrong.append(f"{spec.path}: it raised {in_short(error)}")
                continue
            wrong += [f"{spec.path}: {wrapper!r} is not callable"] * (not callable(wrapper))
            wrong += [f"{spec.path}: it is the original"] * (wrapper is stand_in.function)
            wrong += [f"{spec.path}: it called the original"] * bool(stand_in.calls)
        require_none(wrong, "make_wrapper")

    def test_a_wrapper_looks_like_the_original(self, kit: AdapterKit) -> None:
        """Name, documentation and signature are those of the original.

        Why it matters: callers, compilers and documentation use them.

        To do: decorate the wrapper with functools.wraps(orig).
        """
        wrong = []
        for spec in kit.targets():
            stand_in, wrapper = kit.wrap(spec)
            theirs, ours = _looks(wrapper), _looks(stand_in.function)
            wrong += [f"{spec.path}: {k} is {v!r}" for k, v in theirs.items() if ours[k] != v]
        require_none(wrong, "wrappers differ from the originals")

    def test_a_wrapper_passes_calls_through(self, kit: AdapterKit) -> None:
        """While nothing is enabled: one call, the same arguments, the same result.

        Why it matters: patching alone must not change a program.

        To do: return orig(*args, **kwargs) before inspecting any argument.
        """
        wrong = []
        for spec in kit.targets():
            stand_in, wrapper = kit.wrap(spec)
            arguments = kit.arguments(spec)
            for turn in ("first", "second"):
                found = stand_in.differences(wrapper, arguments)
                wrong += [f"{spec.path}, {turn} call: {problem}" for problem in found]
        require_none(wrong, "wrappers, while neither apply nor tracing is enabled")

    def test_what_the_original_raises_goes_on(self, kit: AdapterKit) -> None:
        """Exceptions of the original reach the caller, after one call.

        Why it matters: callers depend on them; FlashInfer's plan, for example, rejects batch sizes.

        To do: call the original outside of the try blocks of the wrapper's own code.
        """
        wrong = []
        for spec, stand_in, wrapper in kit.sound():
            stand_in.error = ValueError("raised by the original")
            args, kwargs = kit.arguments(spec)
            raised = raised_by(partial(wrapper, *args, **kwargs))
            if raised is not stand_in.error:
                wrong.append(f"{spec.path}: {raised!r} instead of {stand_in.error!r}")
            if len(stand_in.calls) != 1:
                wrong.append(f"{spec.path}: the original was called {len(stand_in.calls)} times")
        require_none(wrong, "originals that raise")

    def test_wrappers_do_not_share_originals(self, kit: AdapterKit) -> None:
        """Two wrappers of the same target each call their own original.

        Why it matters: a library may be patched, unpatched and patched again.

        To do: keep the original in the wrapper's closure, not on the adapter.
        """
        for spec, first, wrapper in kit.sound():
            second, other = kit.wrap(spec)
            second.calls.clear()
            args, kwargs = kit.arguments(spec)
            for each in (other, wrapper):
                raised_by(partial(each, *args, **kwargs))
            require(
                (len(first.calls), len(second.calls)) == (1, 1),
                f"{spec.path}: after one call of each of two wrappers, their originals were "
                f"called {len(first.calls)} and {len(second.calls)} times",
            )

    @pytest.mark.parametrize("mode", ["mapping", "dataset"])
    def test_substituted_calls_are_like_the_original(
        self, kit: AdapterKit, mode: str, request: pytest.FixtureRequest
    ) -> None:
        """Solutions get the arguments of calls, and their outputs come back in the same form.

        Why it matters: programs would compute wrong results, or crash, when apply is enabled.

        To do: pass on all arguments of the definition. Return what the original returns (a tensor,
        a tuple, the buffer given as out=, or None), and write to the same buffers. Leave calls that
        the definition does not describe, or with unknown arguments, to the original.
        """
        calls, specs = kit.case.calls, {spec.path: spec for spec in kit.targets()}
        if not any(call.definition for call in calls):
            pytest.skip("the case has no calls for solutions to answer: add some (calls=[…])")
        super().require_available(kit.case, request)
        wrong = []
        for number, call in enumerate(calls, 1):
            alike = [one for one in calls if one.path == call.path]
            name = call.definition.name if call.definition is not None else ""
            if name and not specs[call.path].wanted([name]):
                wrong.append(f"{call.path}, call {number}: `definitions` does not match {name!r}")
            original = resolve(call.path).function
            with must_work("make_wrapper", see=_SEE_WRAPS):
                wrapper = kit.adapter.make_wrapper(specs[call.path], original)
            for is_different in (False, True):
                with answered(mode, alike, is_different=is_different):
                    found, extra = Effects(wrapper, call), Effects(wrapper, call, unknown=0)
                is_other = is_different and bool(name)
                problem = found.difference(Effects(original, call), is_different=is_other)
                if not problem and extra.form != (known := Effects(original, call, unknown=0)).form:
                    problem = f"with an unknown argument it {extra.form}; the original {known.form}"
                which = "a different" if is_different else "a correct"
                wrong += [f"{call.path}, call {number}, {which} solution: {problem}"] * bool(
                    problem
                )
        require_none(wrong, f"calls that solutions answer, enabled by a {mode}")

    def test_patching_is_undone(self, given: AdapterCase, request: pytest.FixtureRequest) -> None:
        """Patching and unpatching the installed library, each twice, restores it.

        Why it matters: disabling apply must restore everything.

        To do: leave patching to the PatchManager: replace nothing in __init__, targets or
        make_wrapper.
        """
        paths = getattr(record_of(given), "targets", ())
        super().require_available(given, request)
        before = {path: found for path in paths if (found := _part_of(path, "found")) is not None}
        adapter = construct(given)
        specs = [spec for spec in AdapterKit(given, adapter).targets() if spec.path in before]
        if not specs:
            pytest.skip("no target is installed: see test_its_targets_exist")
        manager = PatchManager()
        try:
            with must_work("make_wrapper", see=_SEE_WRAPS):
                for spec in specs * 2:
                    manager.patch(spec, adapter.make_wrapper)
        finally:
            manager.unpatch_all()
            manager.unpatch_all()
        left = [path for path, found in before.items() if _part_of(path, "found") is not found]
        require(not left, f"not restored after patching and unpatching: {', '.join(left)}")


def _part_of(path: str, attribute: str) -> Any:
    """Return an attribute of a resolved target; None if it is not installed."""
    try:
        return getattr(resolve(path), attribute)
    except Exception:  # noqa: BLE001 - the library may raise anything when it is imported
        return None


def _identities(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    return [id(each) for each in args], {name: id(value) for name, value in kwargs.items()}


def _looks(function: Callable[..., Any]) -> dict[str, Any]:
    names = ("__name__", "__qualname__", "__module__", "__doc__")
    try:
        signature = str(inspect.signature(function))
    except (TypeError, ValueError) as error:
        signature = f"unknown ({error})"
    return {name: getattr(function, name, None) for name in names} | {"the signature": signature}
