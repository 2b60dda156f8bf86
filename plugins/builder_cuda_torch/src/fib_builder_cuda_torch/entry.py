"""Find the function that an entry point names in a loaded library, and its signature.

Signatures are read from pybind11's docstrings and torch's operator schemas.
"""

from __future__ import annotations

import ast
import re
from inspect import Parameter, Signature
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_builder_cuda_torch.scan import MODULE_NAME
from fib_native_toolkit import find_entry
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.data import Solution

# Text of pybind11 that is not valid Python: C++ type names, and values without a Python literal.
_FOREIGN = re.compile(r"<[^<>]*>|::")


class EntryPoint(NamedTuple):
    """The function that an entry point names.

    Attributes
    ----------
    function : callable
        The function to call, without any wrapper.
    signature : inspect.Signature, optional
        None if unknown, as for overloaded functions.
    place : str
        Where it was found, for messages: ``module``, or ``operator <name>::run``.
    """

    function: Callable[..., Any]
    signature: Optional[Signature]
    place: str


def find_entry_point(name: str, module: Optional[ModuleType], solution: Solution) -> EntryPoint:
    """Return the function that a solution's entry point names.

    Parameters
    ----------
    name : str
        Namespace of the library's operators, which are searched last.
    module : ModuleType, optional
        The library's module, if it has one.
    solution : Solution
        Its entry point names the symbol.

    Raises
    ------
    BuildError
        If the symbol does not exist.
    """
    import torch

    symbol = solution.get_entry_symbol()
    if module is not None and hasattr(module, symbol):
        function = find_entry(module, solution)
        return EntryPoint(function, from_docstring(function.__doc__, symbol), "module")
    packet: Any = getattr(getattr(torch.ops, name), symbol, None)
    # A namespace also has attributes that are not operators, such as its name.
    if isinstance(packet, torch._ops.OpOverloadPacket):
        place = f"operator {name}::{symbol}"
        overloads = packet.overloads()  # type: ignore[no-untyped-call]
        if len(overloads) > 1:
            return EntryPoint(packet, None, place)
        overload = getattr(packet, overloads[0])
        # torch's internal function behind the Python object makes a call 20 % cheaper.
        return EntryPoint(getattr(overload, "_op", overload), from_schema(overload._schema), place)
    registered = torch._C._dispatch_get_all_op_names()
    operators = [full.partition("::")[2] for full in registered if full.startswith(f"{name}::")]
    if module is None and not operators:
        raise BuildError(
            f"solution {solution.name!r}: the library has neither a Python module nor operators",
            hint=f'Write PYBIND11_MODULE({MODULE_NAME}, m) {{ m.def("run", &run); }} '
            f"or TORCH_LIBRARY({MODULE_NAME}, m).",
        )
    # All names that could be meant, to suggest the nearest one.
    everything = ModuleType(name)
    vars(everything).update(dict.fromkeys(each.partition(".")[0] for each in operators))
    vars(everything).update(vars(module) if module is not None else {})
    find_entry(everything, solution)
    raise AssertionError("the symbol was not found before")


def from_schema(schema: Any) -> Signature:
    """Return the signature of an operator.

    Parameters
    ----------
    schema : torch.FunctionSchema
        The operator's schema.
    """
    parameters = [
        Parameter(
            argument.name,
            Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=None if argument.has_default_value() else Parameter.empty,
        )
        for argument in sorted(schema.arguments, key=lambda one: one.kwarg_only)
    ]
    members = (Any,) * len(schema.returns)
    several: Any = tuple[members] if members else type(None)  # type: ignore[valid-type]
    return Signature(parameters, return_annotation=Any if len(members) == 1 else several)


def from_docstring(doc: Optional[str], symbol: str) -> Optional[Signature]:
    """Return the signature that pybind11 writes into a docstring.

    Parameters
    ----------
    doc : str, optional
        ``"run(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor"``, and any text of the author.
    symbol : str
        Name of the function.

    Returns
    -------
    inspect.Signature or None
        None if the docstring has no signature, or several overloads.
    """
    text, _, more = (doc or "").partition("\n")
    foreign = 1
    while foreign:  # brackets may be nested
        text, foreign = _FOREIGN.subn("_", text)
    try:
        parsed = ast.parse(f"def f{text.removeprefix(symbol)}: ...").body[0]
    except (SyntaxError, ValueError, RecursionError):
        return None
    overloaded = more.startswith("Overloaded function.")
    named = text.startswith(f"{symbol}(") and not overloaded
    if not named or not isinstance(parsed, ast.FunctionDef) or parsed.returns is None:
        return None
    empty, args = Parameter.empty, parsed.args
    positional = len(args.posonlyargs) + len(args.args)
    optional = positional - len(args.defaults)
    parameters = [
        Parameter(f"p{i}", Parameter.POSITIONAL_ONLY, default=empty if i < optional else None)
        for i in range(positional)
    ]
    if args.vararg is not None:
        parameters.append(Parameter("args", Parameter.VAR_POSITIONAL))
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        given = empty if default is None else None
        parameters.append(Parameter(one.arg, Parameter.KEYWORD_ONLY, default=given))
    node, returned = parsed.returns, ast.unparse(parsed.returns)
    annotation: Any = type(None) if returned == "None" else Any
    if isinstance(node, ast.Subscript) and re.match(r"(typing\.)?[Tt]uple\[", returned):
        members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if "..." not in map(ast.unparse, members):
            annotation = tuple[(Any,) * len(members)]  # type: ignore[misc]
    return Signature(parameters, return_annotation=annotation)
