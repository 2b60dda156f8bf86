"""A function that is told of each call that apply sees, as the first release had it."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.routing import router

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Hook = Callable[[str, Mapping[str, Any]], None]


def _nothing(_name: str, _arguments: Mapping[str, Any], /) -> None:
    """Is the hook where none is set."""


_hook: Hook = _nothing
_end: Optional[Callable[[], None]] = None


def set_apply_hook(fn: Optional[Hook]) -> None:
    """Have a function told of each call that apply sees, before it is made.

    Parameters
    ----------
    fn : callable, optional
        Gets the name of the definition and the arguments by name: those of a decorated function by
        its own names, those of `apply(name, args=...)` by the definition's, or by their number,
        ``"0"`` for the first, where what is enabled does not know the definition.
        What it raises is logged and goes no further. None for no hook: that costs nothing.
    """
    global _hook, _end
    end, _end, _hook = _end, None, _nothing if fn is None else fn
    if end is not None:
        end()
    if fn is not None:
        _end = router.observe(_tell)


def get_apply_hook() -> Hook:
    """Return the hook, which does nothing if none is set."""
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
