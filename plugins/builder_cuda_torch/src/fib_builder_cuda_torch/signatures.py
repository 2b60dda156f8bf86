"""What compiled functions say of their parameters: in pybind11's docstrings and torch's schemas."""

from __future__ import annotations

import ast
import re
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Optional

from fib_native_toolkit import choose_style, declared_style, read_arity
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.data import Definition, Solution

_OVERLOADED = "Overloaded function."
# What pybind11 writes that is no Python: C++ names of types, and values without a notation.
_FOREIGN = re.compile(r"<[^<>]*>|::")


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
        See `fib_native_toolkit.choose_style`, whose rules these are.

    Returns
    -------
    bool
        True for destination-passing.

    Raises
    ------
    BuildError
        If no overload can be called that way, or it returns a tuple of another length.
    """
    chosen = _best(signatures, definition, solution) if signatures else function
    return choose_style(chosen, definition, solution)


def _best(signatures: Sequence[Signature], definition: Definition, solution: Solution) -> Signature:
    """Return the overload that will be called: one that fits, returning its outputs if both do."""
    inputs = len(definition.inputs)
    both = inputs + len(definition.outputs)
    style = declared_style(solution.spec)
    wanted = {None: (inputs, both), False: (inputs,), True: (both,)}[style]
    fitting = (one for count in wanted for one in signatures if _accepts(one, count))
    return next(fitting, signatures[0])


def _accepts(signature: Signature, count: int) -> bool:
    try:
        arity = read_arity(signature)
    except BuildError:  # it cannot be called by position at all
        return False
    return arity is None or arity.accepts(count)


def from_schema(schema: Any) -> Signature:
    """Return the signature of an operator.

    Parameters
    ----------
    schema : torch.FunctionSchema
        Its schema.
    """
    optional = [a.has_default_value() for a in schema.arguments if not a.kwarg_only]
    required = [a.name for a in schema.arguments if a.kwarg_only and not a.has_default_value()]
    members = (Any,) * len(schema.returns)
    several: Any = tuple[members] if members else type(None)  # type: ignore[valid-type]
    return _signature(optional, required, Any if len(members) == 1 else several)


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
    lines = (doc or "").splitlines()
    numbered = len(lines) > 1 and lines[1] == _OVERLOADED
    texts = [re.sub(r"^\d+\. ", "", line) for line in lines[2:]] if numbered else lines[:1]
    found = [_parse(text[len(symbol) :]) for text in texts if text.startswith(f"{symbol}(")]
    return [signature for signature in found if signature is not None]


def _parse(text: str) -> Optional[Signature]:
    """Return the signature that ``(x: A, y: B = 1) -> C`` stands for, if it can be understood."""
    foreign = 1
    while foreign:  # one kind of bracket may be inside another
        text, foreign = _FOREIGN.subn("_", text)
    parsed = _as_function(text)
    if parsed is not None:
        args = parsed.args
        positional = len(args.posonlyargs) + len(args.args)
        optional = [index >= positional - len(args.defaults) for index in range(positional)]
        keywords = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        required = [argument.arg for argument, default in keywords if default is None]
        any_number = args.vararg is not None
    else:
        # A default before a parameter without one, which is Python only among keywords.
        parsed = _as_function(re.sub(r", \*args\b", "", text).replace("(", "(*, ", 1))
        if parsed is None:
            return None
        optional = [default is not None for default in parsed.args.kw_defaults]
        required, any_number = [], ", *args" in text
    if parsed.returns is None:
        return None
    return _signature(optional, required, _returned(parsed.returns), any_number=any_number)


def _as_function(text: str) -> Optional[ast.FunctionDef]:
    try:
        parsed = ast.parse(f"def f{text}: ...").body[0]
    except (SyntaxError, ValueError, RecursionError, IndexError):
        return None
    return parsed if isinstance(parsed, ast.FunctionDef) else None


def _signature(
    optional: Sequence[bool], required: Sequence[str], returned: Any, *, any_number: bool = False
) -> Signature:
    """Return a signature of positional parameters, some optional, and required keywords."""
    # Compiled code may have a default before a parameter without one; by position it is no use.
    needed = max((index for index, free in enumerate(optional) if not free), default=-1)
    parameters = [
        Parameter(
            f"p{index}",
            Parameter.POSITIONAL_ONLY,
            default=Parameter.empty if index <= needed else None,
        )
        for index in range(len(optional))
    ]
    if any_number:
        parameters.append(Parameter("args", Parameter.VAR_POSITIONAL))
    parameters += [Parameter(name, Parameter.KEYWORD_ONLY) for name in required]
    return Signature(parameters, return_annotation=returned)


def _returned(node: ast.expr) -> Any:
    text = ast.unparse(node)
    if text == "None":
        return type(None)
    if not isinstance(node, ast.Subscript) or not re.match(r"(typing\.)?[Tt]uple\[", text):
        return Any
    members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if "..." in map(ast.unparse, members):
        return Any
    return tuple[(Any,) * len(members)]  # type: ignore[misc]
