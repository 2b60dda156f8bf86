"""What compiled functions say of their parameters: in pybind11's docstrings and torch's schemas."""

from __future__ import annotations

import re
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.compile.toolkit import choose_style, declared_style, read_arity
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashinfer_bench.data import Definition, Solution

_OPENING, _CLOSING = "([{<", ")]}>"
_QUOTES = "'\""
_OVERLOAD = re.compile(r"^\d+\. (?=\w+\()", re.MULTILINE)
_TUPLE = re.compile(r"(?:typing\.)?[Tt]uple\[(.*)\]$", re.DOTALL)


def style_of(
    function: Callable[..., Any],
    signatures: Sequence[Signature],
    definition: Definition,
    solution: Solution,
) -> bool:
    """Decide whether a compiled function takes its outputs as arguments, and check that it can.

    Parameters
    ----------
    function : callable
        The function.
    signatures : sequence of inspect.Signature
        Its overloads; if there are none, nothing is known and nothing is checked.
    definition, solution
        See `flashinfer_bench.compile.toolkit.choose_style`, whose rules these are.

    Returns
    -------
    bool
        True for destination-passing.

    Raises
    ------
    BuildError
        If no overload can be called that way, or it returns a tuple of another length.
    """
    stand_ins = [_stand_in(signature) for signature in signatures] or [function]
    chosen = _best(stand_ins, definition, solution) if len(stand_ins) > 1 else stand_ins[0]
    return choose_style(chosen, definition, solution)


def _best(
    functions: list[Callable[..., Any]], definition: Definition, solution: Solution
) -> Callable[..., Any]:
    """Return the overload that will be called: one that fits, returning its outputs if both do."""
    inputs = len(definition.inputs)
    both = inputs + len(definition.outputs)
    style = declared_style(solution.spec)
    wanted = {None: (inputs, both), False: (inputs,), True: (both,)}[style]
    for count in wanted:
        for function in functions:
            if _accepts(function, count):
                return function
    return functions[0]


def _accepts(function: Callable[..., Any], count: int) -> bool:
    try:
        arity = read_arity(function)
    except BuildError:  # it cannot be called by position at all
        return False
    return arity is None or arity.accepts(count)


def _stand_in(signature: Signature) -> Callable[..., Any]:
    """Return a Python function with that signature, for what looks at Python functions."""

    def function() -> None: ...

    function.__annotations__ = {"return": signature.return_annotation}
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def from_schema(schema: Any) -> Signature:
    """Return the signature of an operator.

    Parameters
    ----------
    schema : torch.FunctionSchema
        Its schema.
    """
    arguments = [
        _Argument(argument.name, argument.has_default_value(), argument.kwarg_only)
        for argument in schema.arguments
    ]
    returned = schema.returns
    if len(returned) == 1:
        return _signature(arguments, Any)
    members = (Any,) * len(returned)
    return _signature(arguments, tuple[members] if members else type(None))  # type: ignore[valid-type]


def from_docstring(doc: Optional[str], symbol: str) -> list[Signature]:
    """Return the signatures that pybind11 writes into a docstring, one for each overload.

    Parameters
    ----------
    doc : str, optional
        ``"run(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor"``, and what the author added.
    symbol : str
        Name of the function.

    Returns
    -------
    list of inspect.Signature
        Empty if the docstring does not tell.
    """
    if not doc:
        return []
    head, _, rest = doc.partition("\n")
    if rest.startswith("Overloaded function."):
        texts = [rest[match.end() :] for match in _OVERLOAD.finditer(rest)]
    else:
        texts = [f"{head}\n{rest}"]
    found = [_parse(text[len(symbol) :]) for text in texts if text.startswith(f"{symbol}(")]
    return [signature for signature in found if signature is not None]


class _Argument(NamedTuple):
    name: str
    optional: bool
    keyword_only: bool = False


def _parse(text: str) -> Optional[Signature]:
    """Return the signature at the beginning of ``(x: A, y: B = 1) -> C``, if there is one."""
    inside, rest = _balanced(text)
    if inside is None or not rest.startswith(" -> "):
        return None
    arguments, stars, after_star = [], [], False
    for part in _split(inside):
        if part in ("*", "/"):
            after_star = after_star or part == "*"
        elif part.startswith("*"):
            stars.append(part)
            after_star = after_star or not part.startswith("**")
        else:
            name = part.partition(":")[0].strip()
            arguments.append(_Argument(name, _has_default(part), after_star))
    returned = _returned(rest[len(" -> ") :].partition("\n")[0].strip())
    return _signature(arguments, returned, any_number=any(s[:2] != "**" for s in stars))


def _signature(
    arguments: Sequence[_Argument], returned: Any, *, any_number: bool = False
) -> Signature:
    positional = [argument for argument in arguments if not argument.keyword_only]
    # Compiled code may have a default before a parameter without one; by position it is no use.
    needed = max((i for i, argument in enumerate(positional) if not argument.optional), default=-1)
    parameters = [
        Parameter(
            f"p{index}",
            Parameter.POSITIONAL_ONLY,
            default=Parameter.empty if index <= needed else None,
        )
        for index, _ in enumerate(positional)
    ]
    if any_number:
        parameters.append(Parameter("args", Parameter.VAR_POSITIONAL))
    parameters += [
        Parameter(
            argument.name,
            Parameter.KEYWORD_ONLY,
            default=None if argument.optional else Parameter.empty,
        )
        for argument in arguments
        if argument.keyword_only
    ]
    return Signature(parameters, return_annotation=returned)


def _returned(text: str) -> Any:
    if text == "None":
        return type(None)
    found = _TUPLE.match(text)
    if found is None:
        return Any
    members = [part for part in _split(found.group(1)) if part != "()"]
    if "..." in members:
        return Any
    return tuple[(Any,) * len(members)]  # type: ignore[misc]


def _balanced(text: str) -> tuple[Optional[str], str]:
    """Split text after the bracket that closes its first one; None if nothing closes it."""
    for index, depth in _depths(text):
        if depth == 0:
            return text[1:index], text[index + 1 :]
    return None, text


def _split(text: str) -> list[str]:
    """Split at the commas that are in no bracket and no string."""
    cuts = [i for i, depth in _depths(text) if depth == 0 and text[i] == ","]
    starts = [0, *(cut + 1 for cut in cuts)]
    parts = [text[a:b].strip() for a, b in zip(starts, [*cuts, len(text)], strict=True)]
    return [part for part in parts if part]


def _has_default(part: str) -> bool:
    return any(depth == 0 and part[i] == "=" for i, depth in _depths(part))


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Yield each index that is in no string, and how many brackets are open after it."""
    depth, quote, escaped = 0, "", False
    for index, char in enumerate(text):
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
            continue
        if char in _QUOTES:
            quote = char
            continue
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING and text[max(index - 1, 0) : index + 1] != "->":
            depth -= 1
        yield index, depth
