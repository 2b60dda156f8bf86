"""How a function returns its outputs, as far as its annotation tells."""

from __future__ import annotations

import ast
import inspect
import typing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional

if TYPE_CHECKING:
    from collections.abc import Callable

_ANY_ERROR = (Exception,)
_MOST_TRIES = 100

Kind = Literal["any", "none", "one", "tuple", "list", "dict"]
"""What outputs are returned in. ``"any"``: one as itself, several as a tuple, none as None."""

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("tuple", "Tuple"), "tuple"),
    **dict.fromkeys(("list", "List"), "list"),
    **dict.fromkeys(("dict", "Dict"), "dict"),
    **dict.fromkeys(("None", "NoneType"), "none"),
    "Tensor": "one",
}


class Returns(NamedTuple):
    """How a function returns its outputs.

    Attributes
    ----------
    kind : str
        What they are in.
    number : int or None
        How many there are, where the annotation tells.
    make : callable or None
        The class of a named tuple.
    """

    kind: Kind = "any"
    number: Optional[int] = None
    make: Optional[Callable[..., Any]] = None

    def wrap(self, values: list[Any], names: list[str]) -> Any:
        """Return outputs as the function would."""
        if self.make is not None and len(values) == self.number:
            return self.make(*values)
        if self.kind == "dict":
            return dict(zip(names, values, strict=True))
        if self.kind == "list":
            return values
        if (self.kind == "tuple" and self.make is None) or len(values) > 1:
            return tuple(values)
        return values[0] if values else None


ANYTHING = Returns()
"""What a function without an annotation returns."""


def returns_of(annotation: Any, function: Optional[Callable[..., Any]] = None) -> Returns:
    """Read what a function returns off its annotation.

    Parameters
    ----------
    annotation : Any
        A type, or the text of one.
    function : callable, optional
        Whose annotation it is: names in a text are looked up where it was defined.
    """
    if isinstance(annotation, str):
        scope = getattr(inspect.unwrap(function), "__globals__", {}) if function else {}
        try:
            return returns_of(eval(annotation, dict(scope)))  # as `typing.get_type_hints` does
        except _ANY_ERROR:  # imported for type checkers alone, as a rule
            return _of_text(annotation)
    if annotation is None:
        return Returns("none", 0)
    origin = typing.get_origin(annotation) or annotation
    fields = getattr(origin, "_fields", None)
    if isinstance(origin, type) and issubclass(origin, tuple) and fields:
        return Returns("tuple", len(fields), origin)
    name = getattr(origin, "__name__", "")
    return _named(name if isinstance(origin, type) else "", list(typing.get_args(annotation)))


def _of_text(text: str) -> Returns:
    node = _parsed(text.strip())
    if node is None:
        return ANYTHING
    items: list[Any] = []
    if isinstance(node, ast.Subscript):
        inner = node.slice
        items = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        items = [... if getattr(item, "value", None) is ... else item for item in items]
        node = node.value
    if isinstance(node, ast.Constant):
        return _of_text(node.value) if isinstance(node.value, str) else _named(str(node.value), [])
    return _named(getattr(node, "attr", getattr(node, "id", "")), items)


def _parsed(text: str) -> Optional[ast.expr]:
    for _ in range(_MOST_TRIES):
        try:
            return ast.parse(text, mode="eval").body
        except SyntaxError:
            break
        except SystemError:  # Python 3.11, while another thread parses as well
            continue
    return None


def _named(name: str, items: list[Any]) -> Returns:
    """Return what a type of that name with those arguments is."""
    kind = _KINDS.get(name, "any")
    known = kind == "tuple" and items and ... not in items
    counts: dict[str, Optional[int]] = {"none": 0, "one": 1}
    return Returns(kind, len(items) if known else counts.get(kind))
