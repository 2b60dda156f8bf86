"""A hook that is called on each call of apply; interface of the first release."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.routing import router

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Hook = Callable[[str, Mapping[str, Any]], None]


def _nothing(_name: str, _arguments: Mapping[str, Any], /) -> None:
    """Do nothing: the hook if none is set."""


_hook: Hook = _nothing
_end: Optional[Callable[[], None]] = None


def set_apply_hook(fn: Optional[Hook]) -> None:
    """Set a function to be called before each call that apply handles.

    Parameters
    ----------
    fn : callable, optional
        Called with the name of the definition and the arguments by name: the parameter names of a
        decorated function; for `apply(name, args=...)` the names in the definition, or indices such
        as ``"0"`` if the enabled runtime does not have the definition. Its exceptions are logged
        and do not propagate. None removes the hook, which then costs nothing.
    """
    global _hook, _end
    end, _end, _hook = _end, None, _nothing if fn is None else fn
    if end is not None:
        end()
    if fn is not None:
        _end = router.observe(_tell)


def get_apply_hook() -> Hook:
    """Return the hook; a function that does nothing if none is set."""
    return _hook


def _tell(
    name: str, point: Any, args: tuple[Any, ...], kwargs: Optional[Mapping[str, Any]]
) -> None:
    named = dict(zip(_names(name, point, len(args)), args, strict=False))
    _hook(name, {**named, **(kwargs or {})})


def _names(name: str, point: Any, count: int) -> list[str]:
    if point is None or point.signature is None:
        definition = router.definition(name) if count else None
        names = [] if definition is None else [*definition.inputs, *definition.outputs]
    else:
        by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        parameters = point.signature.parameters.values()
        names = [each.name for each in parameters if each.kind in by_position]
    return names + [str(index) for index in range(len(names), count)]
