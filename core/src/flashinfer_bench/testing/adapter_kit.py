"""What the tests of an adapter work with: calls, and stand-ins for the original functions."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.integration import PatchSpec, resolve
from flashinfer_bench.testing.verdict import in_short, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashinfer_bench.integration import Adapter
    from flashinfer_bench.plugins import AdapterSpec

    Arguments = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class AdapterCase:
    """An adapter, and calls of what it wraps.

    The original functions are not run: stand-ins with their signatures are wrapped and called.

    Parameters
    ----------
    record : AdapterSpec or str
        What the plugin registers, or the path of the factory.
    arguments : mapping of str to callable
        For paths of targets: makes positional and named arguments of a call, a method's object
        included. Default: for each parameter an object without any properties, in which a wrapper
        that does nothing has no interest.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    record: Union[AdapterSpec, str]
    arguments: Mapping[str, Callable[[], Arguments]] = field(default_factory=dict)
    plugin: Optional[str] = None


class Token:
    """An argument that stands for itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<argument {self._name}>"


class StandIn:
    """In the place of an original function: notes its calls, and returns one object.

    Parameters
    ----------
    like : callable, optional
        The original, whose name, documentation and signature it has.

    Attributes
    ----------
    function : callable
        The stand-in itself.
    calls : list
        Positional and named arguments of each call.
    result : object
        What it returns.
    error : BaseException, optional
        What it raises instead.
    """

    def __init__(self, like: Optional[Callable[..., Any]]) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.result = Token("result")
        self.error: Optional[BaseException] = None

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((args, kwargs))
            if self.error is not None:
                raise self.error
            return self.result

        self.function = functools.wraps(like)(stand_in) if like is not None else stand_in


class AdapterKit:
    """A case and an adapter that is made for one test.

    Parameters
    ----------
    case : AdapterCase
        What the author gives.
    adapter : Adapter
        A new one.
    """

    def __init__(self, case: AdapterCase, adapter: Adapter) -> None:
        self.case = case
        self.adapter = adapter

    def targets(self) -> list[PatchSpec]:
        """Return the targets; skip the test if they are no PatchSpecs."""
        try:
            found = list(self.adapter.targets())
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            skip(f"targets raised {in_short(error)}: see test_its_targets_are_the_record_s")
        if not found or not all(isinstance(each, PatchSpec) for each in found):
            skip("targets returned something else: see test_its_targets_are_the_record_s")
        return found

    def wrap(self, spec: PatchSpec) -> tuple[StandIn, Callable[..., Any]]:
        """Return a stand-in for a target, and its wrapper; skip the test if there is none."""
        stand_in = StandIn(original_of(spec))
        try:
            return stand_in, self.adapter.make_wrapper(spec, stand_in.function)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            skip(f"make_wrapper raised {in_short(error)}: see test_it_wraps_each_target")

    def sound(self) -> Iterator[tuple[PatchSpec, StandIn, Callable[..., Any]]]:
        """Yield targets with stand-ins and wrappers that pass calls through, or skip the test."""
        for spec in self.targets():
            stand_in, wrapper = self.wrap(spec)
            args, kwargs = self.arguments(spec)
            if problems(stand_in, wrapper, args, kwargs):
                skip(f"{spec.path}: see test_a_wrapper_passes_calls_through")
            stand_in.calls.clear()
            yield spec, stand_in, wrapper

    def arguments(self, spec: PatchSpec) -> Arguments:
        """Return arguments for a call of a target; skip the test if there are none."""
        make = self.case.arguments.get(spec.path)
        if make is not None:
            return make()
        original = original_of(spec)
        if original is None:
            skip(f"{spec.path} is not installed, and the case has no arguments for it")
        parameters = inspect.signature(original).parameters.values()
        plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        required = [p for p in plain if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        named = [p for p in plain if p not in required and p.kind is not p.POSITIONAL_ONLY]
        return [Token(p.name) for p in required], {p.name: Token(p.name) for p in named}


def original_of(spec: PatchSpec) -> Optional[Callable[..., Any]]:
    """Return the function that a target names; None where it is not installed."""
    try:
        found: Callable[..., Any] = resolve(spec.path).function
    except Exception:  # noqa: BLE001 - the library may raise anything when it is imported
        return None
    return found


def problems(
    stand_in: StandIn,
    wrapper: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[str]:
    """Call a wrapper, and say what is different from calling the original."""
    try:
        result = wrapper(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
        return [f"raised {in_short(error)}"]
    found = []
    if len(stand_in.calls) != 1:
        found.append(f"the original was called {len(stand_in.calls)} times")
    elif not _identical(stand_in.calls[0], (tuple(args), dict(kwargs))):
        found.append(f"the original was called with {stand_in.calls[0]}")
    if result is not stand_in.result:
        found.append(f"returned {result!r} in place of the original's result")
    return found


def _identical(found: tuple[Any, dict[str, Any]], given: tuple[Any, dict[str, Any]]) -> bool:
    same_places = len(found[0]) == len(given[0]) and found[1].keys() == given[1].keys()
    return (
        same_places
        and all(a is b for a, b in zip(found[0], given[0], strict=True))
        and all(found[1][name] is value for name, value in given[1].items())
    )
