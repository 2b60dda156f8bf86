"""Map the parameters of a function to the inputs and outputs of a definition.

A decorated function need not look like its definition. The mapping is computed once, by name:

- A parameter with the name of an input or output is mapped to it. If all inputs have such a
  parameter, their order does not matter.
- Other parameters that may be positional are mapped to the input or output at that position.
- The remaining parameters are unknown to the definition, which describes a call only if they have
  their default values. `self` and `cls` are ignored.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import linecache
import typing
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from inspect import Parameter, Signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.patch_manager import UnroutableError
from flashinfer_bench.routing.patch_points import Args, Call, Kwargs, opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import CodeType


VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

EXTRAS = "argument unknown to the definition"
"""Reason: a parameter that the definition lacks does not have its default value."""


@dataclass(frozen=True)
class Binding:
    """The mapping from parameters to inputs and outputs.

    Attributes
    ----------
    inputs : tuple of str
        The parameter for each input, in the order of the definition.
    outputs : tuple of str
        The parameter for each output; empty if the function takes none.
    extras : tuple of str
        Parameters that the definition does not have, and that have a default.
    rest : tuple of str
        ``*args`` and ``**kwargs``, which the definition does not have either.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()


class Canonical(Signature):
    """The parameters of a route: only inputs of definitions, under their names.

    No parameter receives an output; a call with these parameters returns the definition's outputs.
    """

    __slots__ = ()


def signature_of(*names: str, **defaults: Any) -> Canonical:
    """Return the canonical signature of a route.

    Parameters
    ----------
    *names : str
        Names of inputs that every definition has.
    **defaults
        Inputs that some definitions lack, and the value that calls must have for these definitions.
    """
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Canonical(
        [Parameter(name, kind) for name in names]
        + [Parameter(name, kind, default=default) for name, default in defaults.items()]
    )


def reordered(call: Call, signature: Canonical, inputs: Sequence[str]) -> Call:
    """Return `call` adapted from the inputs of a definition to canonical arguments.

    Parameters
    ----------
    call : callable
        Takes inputs by position.
    signature : Canonical
        Names the canonical arguments.
    inputs : sequence of str
        Names of the inputs.

    Returns
    -------
    callable
        Its fallback must be that of a routed call: it receives the order, and must decline calls
        with arguments that the definition does not cover.

    Raises
    ------
    ConfigError
        If no call with such arguments can match the definition.
    """
    parameters = list(signature.parameters)
    binding = match(signature, inputs, ())
    order = tuple(parameters.index(name) for name in binding.inputs)
    if order == tuple(range(len(parameters))):
        return call
    extras = [
        (parameters.index(name), signature.parameters[name].default) for name in binding.extras
    ]
    # For a single position `itemgetter` does not return a tuple.
    pick = itemgetter(*order) if len(order) > 1 else lambda args: tuple(args[i] for i in order)

    @opaque
    def bound(args: Args, _kwargs: Kwargs, fallback: Any) -> Any:
        for position, default in extras:
            value = args[position]
            if value is not default and not same_value(value, default):
                return fallback.decline(EXTRAS)
        fallback.order = order
        return call(pick(args), None, fallback)

    return bound


def match(signature: Signature, inputs: Sequence[str], outputs: Sequence[str]) -> Binding:
    """Map parameters to inputs and outputs.

    Parameters
    ----------
    signature : inspect.Signature
        Signature of the function. For a canonical one only names are matched, and no parameter
        receives an output.
    inputs, outputs : sequence of str
        Names in the definition.

    Raises
    ------
    ConfigError
        If an input has no parameter, a parameter without a default cannot be mapped, or names and
        positions contradict each other.
    """
    named = {name: each for name, each in signature.parameters.items() if each.kind not in VARIABLE}
    drop_object(named, {*inputs, *outputs})
    positional = [name for name, each in named.items() if each.kind in BY_POSITION]
    canonical = isinstance(signature, Canonical)
    outputs = () if canonical else outputs
    taken = {name: name for name in (*inputs, *outputs) if name in named}
    if not canonical and not all(name in taken for name in inputs):
        wanted = [*inputs, *outputs]
        for index, name in enumerate(positional):
            # Outputs are required arguments: a parameter with a default may mean anything.
            passed = index < len(inputs) or named[name].default is Parameter.empty
            if name not in taken:
                if passed and index < len(wanted) and wanted[index] not in taken:
                    taken[wanted[index]] = name
            elif wanted.index(name) != index:
                raise ConfigError(
                    f"parameter '{name}' is at position {index}, but '{name}' of the definition "
                    f"at {wanted.index(name)}, and not all inputs have a parameter of their name"
                )
    missing = [name for name in inputs if name not in taken]
    if missing:
        raise ConfigError(f"no parameter is input '{missing[0]}'")
    found = tuple(taken[name] for name in outputs if name in taken)
    if len(found) < len(outputs):  # an incomplete set is useless
        found = ()
    used = {*(taken[name] for name in inputs), *found}
    extras = tuple(name for name in named if name not in used)
    unknown = [name for name in extras if named[name].default is Parameter.empty]
    if unknown:
        raise ConfigError(f"parameter '{unknown[0]}' is neither an input nor an output")
    return Binding(
        inputs=tuple(taken[name] for name in inputs),
        outputs=found,
        extras=extras,
        rest=tuple(each.name for each in signature.parameters.values() if each.kind in VARIABLE),
    )


def drop_object(named: dict[str, Parameter], known: set[str]) -> None:
    """Remove the parameter that receives the object of a method call."""
    first = next(iter(named), None)
    if first in ("self", "cls") and first not in known:
        del named[first]


def same_value(value: Any, default: Any) -> bool:
    """Return whether an argument is the default object, or a plain value equal to it."""
    plain = type(default) in (bool, int, float, str, bytes)
    return value is default or (plain and type(value) is type(default) and bool(value == default))


# --------------------------------------------------------------------------------- outputs


def write_back(results: list[Any], buffers: Mapping[int, Any]) -> None:
    """Copy outputs into buffers as if all copies happened at the same time.

    A solution may return views of its inputs, which may also be output buffers.

    Parameters
    ----------
    results : list
        All outputs. Those that a copy would overwrite are replaced by clones.
    buffers : mapping of int to torch.Tensor
        Destination buffers, by position of the output.
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
    """Return the address of a tensor's memory; for anything else, a value no tensor has."""
    storage = getattr(value, "untyped_storage", None)
    if storage is None:
        return None
    try:
        return value.device, storage().data_ptr()
    except Exception:  # noqa: BLE001 - fake and sparse tensors have none
        return None, id(value)


def _is_view_of(result: Any, buffer: Any) -> bool:
    """Return whether both tensors cover the same memory in the same order."""
    if result is buffer:
        return True
    if buffer is None or memory_of(result) != memory_of(buffer):
        return False
    first, second = ((each.data_ptr(), each.shape, each.stride()) for each in (result, buffer))
    return bool(first == second)


def quick_binder(
    signature: Signature,
) -> Callable[[Args, Kwargs], dict[str, Any]]:
    """Return a function that maps the arguments of a call to names, with defaults.

    Parameters
    ----------
    signature : Signature
        Signature of the function that is called.

    Returns
    -------
    callable
        ``binder(args, kwargs)`` returns the arguments by name, with ``*args`` as a tuple and
        ``**kwargs`` as a dict, under their own names. It raises `UnroutableError` for arguments
        that do not match, so that the original reports the error.
    """
    parameters = signature.parameters.values()
    plain = {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
    if not {each.kind for each in parameters} <= plain:

        def bind_slowly(args: Args, kwargs: Kwargs) -> dict[str, Any]:
            try:
                bound = signature.bind(*args, **(kwargs or {}))
            except TypeError:
                raise UnroutableError("arguments") from None
            bound.apply_defaults()
            return bound.arguments

        return bind_slowly
    positional = [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    names = frozenset(signature.parameters)
    defaults = {
        each.name: each.default for each in parameters if each.default is not Parameter.empty
    }

    def bind(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        values = {**defaults, **dict(zip(positional, args, strict=False)), **(kwargs or {})}
        twice = kwargs and not kwargs.keys().isdisjoint(positional[: len(args)])
        if len(args) > len(positional) or twice or values.keys() != names:
            raise UnroutableError("arguments")
        return values

    return bind


# ------------------------------------------------------------------------------ what is returned

Kind = Literal["any", "none", "one", "tuple", "list", "dict"]
"""Form of the returned outputs. ``"any"``: one unwrapped, several as a tuple, or None."""

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
        Kind of container.
    number : int or None
        Number of outputs, if the annotation specifies it.
    make : callable or None
        Class of a named tuple.
    """

    kind: Kind = "any"
    number: Optional[int] = None
    make: Optional[Callable[..., Any]] = None

    def wrap(self, values: list[Any], names: list[str]) -> Any:
        """Return outputs in the form that the function would use."""
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
"""Form of the result of a function without an annotation."""


def returns_of(annotation: Any, function: Optional[Callable[..., Any]] = None) -> Returns:
    """Parse the return annotation of a function.

    Parameters
    ----------
    annotation : Any
        A type, or its source text.
    function : callable, optional
        The annotated function: names in a text are resolved in its scope.
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
    """Return the type that an annotation names, or its text if it cannot be resolved."""
    if not isinstance(annotation, str):
        return annotation
    scope = getattr(inspect.unwrap(function), "__globals__", {}) if function else {}
    try:
        return eval(annotation, dict(scope))  # as `typing.get_type_hints` does
    except Exception:  # noqa: BLE001 - usually a name imported only for type checkers
        return annotation


def _of_text(text: str) -> Returns:
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, SystemError):  # Python 3.11 may raise SystemError if several threads parse
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
    """Return the `Returns` for a type with this name and these arguments."""
    kind = _KINDS.get(name, "any")
    known = kind == "tuple" and items and ... not in items
    counts: dict[str, Optional[int]] = {"none": 0, "one": 1}
    return Returns(kind, len(items) if known else counts.get(kind))


# ---------------------------------------------------------------------------- generated functions

RESERVED = "_fib_"
"""Prefix of all names that generated code adds to those of a user's function."""


def compile_source(
    source: str, name: str = "make", names: Optional[Mapping[str, Any]] = None, title: str = ""
) -> Callable[..., Any]:
    """Return a function that the source text defines at top level.

    The text is stored where tracebacks look for source. The same text is compiled only once.

    Parameters
    ----------
    source : str
        Generated by this project: no foreign text may be part of it, except names known to be
        identifiers and the output of `repr`.
    name : str
        Name of the function.
    names : mapping, optional
        Its global names. Names of a module are avoided, because torch.compile would look for the
        globals there.
    title : str
        Shown in tracebacks instead of a file name.
    """
    scope = dict(names or {})
    exec(_compiled(source, title), scope)
    made: Callable[..., Any] = scope[name]
    return made


@lru_cache(maxsize=1024)
def _compiled(source: str, title: str) -> CodeType:
    digest = sha256(source.encode()).hexdigest()[:12]
    file = " ".join(filter(None, ("<flashinfer_bench apply", title, f"{digest}>")))
    # Entries without a modification time are not dropped when the file does not exist.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec")


def writable(signature: Signature) -> bool:
    """Return whether generated code can use these parameters under their names."""
    names = signature.parameters
    return all(
        name.isidentifier() and not keyword.iskeyword(name) and not name.startswith(RESERVED)
        for name in names
    )


def parameter_list(signature: Signature) -> str:
    """Return the parameter list as source; each default is None, as a placeholder."""
    empty = Parameter.empty
    plain = [
        each.replace(annotation=empty, default=empty if each.default is empty else None)
        for each in signature.parameters.values()
    ]
    return str(Signature(plain))[1:-1]


def passing(signature: Signature) -> tuple[str, str, str]:
    """Return the source of what passes all parameters of a function on.

    Returns
    -------
    arguments : str
        An argument list.
    args : str
        A tuple of all positional arguments.
    kwargs : str
        A dict of the keyword-only ones, or None if there are none.
    """
    arguments, args, kwargs = [], [], []
    for name, each in signature.parameters.items():
        if each.kind is Parameter.KEYWORD_ONLY:
            arguments.append(f"{name}={name}")
            kwargs.append(f"{name!r}: {name}")
        elif each.kind is Parameter.VAR_KEYWORD:
            arguments.append(f"**{name}")
            kwargs.append(f"**{name}")
        else:
            arguments.append(f"*{name}" if each.kind is Parameter.VAR_POSITIONAL else name)
            args.append(arguments[-1])
    named = f"{{{', '.join(kwargs)}}}" if kwargs else "None"
    return ", ".join(arguments), tuple_of(args), named


def place_of(signature: Signature, name: str, prefix: str = "") -> str:
    """Return the source of an argument in the ``args`` and ``kwargs`` of a call.

    Parameters
    ----------
    signature : Signature
        Parameters of the function.
    name : str
        One of them; for ``*args`` and ``**kwargs``, the source is true if there are any.
    prefix : str
        What the names ``args`` and ``kwargs`` begin with.
    """
    kind, index = signature.parameters[name].kind, list(signature.parameters).index(name)
    if kind is Parameter.KEYWORD_ONLY:
        return f"{prefix}kwargs[{name!r}]"
    if kind is Parameter.VAR_POSITIONAL:
        return f"{prefix}args[{index}:]"
    if kind is Parameter.VAR_KEYWORD:
        named = [p.name for p in signature.parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
        return f"[key for key in {prefix}kwargs or () if key not in {named!r}]"
    return f"{prefix}args[{index}]"


def tuple_of(names: Iterable[str]) -> str:
    """Return the source of a tuple of expressions."""
    return f"({''.join(f'{name}, ' for name in names).rstrip()})"
