"""Helpers of adapters: arguments by name, and outputs where and how the caller wants them."""

from __future__ import annotations

import ast
import inspect
import typing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional

from flashinfer_bench.routing.routes import UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.routing.patch_points import Args, Kwargs

_ANYTHING = (Exception,)


def write_back(results: list[Any], buffers: Mapping[int, Any]) -> None:
    """Copy outputs into buffers, as if all were copied at the same time.

    A solution may return views of its inputs, which may be buffers themselves.

    Parameters
    ----------
    results : list
        All outputs. Those that writing would change are replaced by copies.
    buffers : mapping of int to torch.Tensor
        Where some go, by their position.
    """
    memory = {memory_of(buffer) for buffer in buffers.values()}
    for index, result in enumerate(results):
        if memory_of(result) in memory and not _is_view_of(result, buffers.get(index)):
            results[index] = result.clone()
    for index, buffer in buffers.items():
        result = results[index]
        if isinstance(result, (bool, int, float)):
            buffer.fill_(result)
        elif not _is_view_of(result, buffer):
            buffer.copy_(result)


def memory_of(value: Any) -> Any:
    """Return where a tensor's memory begins; for anything else, what no tensor has."""
    storage = getattr(value, "untyped_storage", None)
    if storage is None:
        return None
    try:
        return value.device, storage().data_ptr()
    except _ANYTHING:  # of a fake tensor, or a sparse one
        return None, id(value)


def _is_view_of(result: Any, buffer: Any) -> bool:
    """Return whether both are the same elements of memory, in the same order."""
    if result is buffer:
        return True
    if buffer is None or memory_of(result) != memory_of(buffer):
        return False
    same: bool = (
        result.data_ptr() == buffer.data_ptr()
        and result.shape == buffer.shape
        and result.stride() == buffer.stride()
    )
    return same


def quick_binder(
    signature: inspect.Signature,
) -> Callable[[Args, Kwargs], dict[str, Any]]:
    """Return what tells the arguments of a call apart, by name and with defaults.

    Parameters
    ----------
    signature : inspect.Signature
        Of the function that is called.

    Returns
    -------
    callable
        ``binder(args, kwargs)`` returns the arguments by name; ``*args`` as a tuple and
        ``**kwargs`` as a dict, under their own names. It raises `UnroutableError` for arguments
        that do not fit: the original says best what is wrong with them.
    """
    parameters = signature.parameters.values()
    plain = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    if not {each.kind for each in parameters} <= plain:
        return lambda args, kwargs: _bind_slowly(signature, args, kwargs)
    positional = [
        each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    names = frozenset(signature.parameters)
    defaults = {
        each.name: each.default
        for each in parameters
        if each.default is not inspect.Parameter.empty
    }

    def bind(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        values = {**defaults, **dict(zip(positional, args, strict=False)), **(kwargs or {})}
        twice = kwargs and not kwargs.keys().isdisjoint(positional[: len(args)])
        if len(args) > len(positional) or twice or values.keys() != names:
            raise UnroutableError("arguments")
        return values

    return bind


def _bind_slowly(signature: inspect.Signature, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **(kwargs or {}))
    except TypeError:
        raise UnroutableError("arguments") from None
    bound.apply_defaults()
    return bound.arguments


# ------------------------------------------------------------------------------ what is returned

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
    annotation = evaluated(annotation, function)
    if isinstance(annotation, str):
        return _of_text(annotation)
    if annotation is None:
        return Returns("none", 0)
    origin = typing.get_origin(annotation) or annotation
    fields = getattr(origin, "_fields", None)
    if isinstance(origin, type) and issubclass(origin, tuple) and fields:
        return Returns("tuple", len(fields), origin)
    name = getattr(origin, "__name__", "")
    return _named(name if isinstance(origin, type) else "", list(typing.get_args(annotation)))


def evaluated(annotation: Any, function: Optional[Callable[..., Any]] = None) -> Any:
    """Return an annotation as the type that it names; its text, if that cannot be looked up."""
    if not isinstance(annotation, str):
        return annotation
    scope = getattr(inspect.unwrap(function), "__globals__", {}) if function else {}
    try:
        return eval(annotation, dict(scope))  # as `typing.get_type_hints` does
    except _ANYTHING:  # imported for type checkers alone, as a rule
        return annotation


def _of_text(text: str) -> Returns:
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, SystemError):  # the latter of Python 3.11, if several threads parse
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


def _named(name: str, items: list[Any]) -> Returns:
    """Return what a type of that name with those arguments is."""
    kind = _KINDS.get(name, "any")
    known = kind == "tuple" and items and ... not in items
    counts: dict[str, Optional[int]] = {"none": 0, "one": 1}
    return Returns(kind, len(items) if known else counts.get(kind))
