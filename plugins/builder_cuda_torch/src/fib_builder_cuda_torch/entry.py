"""From a loaded library to the function that the entry point names, and what is known of it."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_builder_cuda_torch.scan import MODULE_NAME
from fib_builder_cuda_torch.signatures import from_docstring, from_schema
from fib_native_toolkit import find_entry
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

    from fib_builder_cuda_torch.loading import Library
    from flashinfer_bench.data import Solution


class EntryPoint(NamedTuple):
    """What an entry point names.

    Attributes
    ----------
    function : callable
        What to call, without anything in between.
    signatures : list of inspect.Signature
        One for each overload; empty if nothing is known.
    place : str
        Where it was found, for people: ``module``, or ``operator <name>::run``.
    """

    function: Callable[..., Any]
    signatures: list[Signature]
    place: str


def find_entry_point(library: Library, solution: Solution) -> EntryPoint:
    """Return what a solution's entry point names.

    Parameters
    ----------
    library : Library
        Its module is looked into first, then its operators.
    solution : Solution
        Names the symbol.

    Raises
    ------
    BuildError
        If there is no such symbol.
    """
    symbol = solution.get_entry_symbol()
    if library.module is not None and hasattr(library.module, symbol):
        function = find_entry(library.module, solution)
        return EntryPoint(function, from_docstring(function.__doc__, symbol), "module")
    packet = _operator(library.name, symbol)
    if packet is not None:
        return _of_operator(packet, f"operator {library.name}::{symbol}")
    find_entry(_all_there_is(library, solution), solution)
    raise AssertionError("the symbol was looked for in vain before")


def _operator(namespace: str, symbol: str) -> Optional[Any]:
    import torch

    found = getattr(getattr(torch.ops, namespace), symbol, None)
    # A namespace has attributes of its own: its name, for one.
    return found if isinstance(found, torch._ops.OpOverloadPacket) else None


def _of_operator(packet: Any, place: str) -> EntryPoint:
    overloads = [getattr(packet, name) for name in packet.overloads()]
    signatures = [from_schema(overload._schema) for overload in overloads]
    if len(overloads) > 1:
        return EntryPoint(packet, signatures, place)
    # torch's own function below the Python object saves a fifth of the cost of a call.
    return EntryPoint(getattr(overloads[0], "_op", overloads[0]), signatures, place)


def _all_there_is(library: Library, solution: Solution) -> ModuleType:
    """Return a module with all names that could be meant, so that the nearest can be told."""
    import torch

    prefix = f"{library.name}::"
    registered = torch._C._dispatch_get_all_op_names()
    operators = [name[len(prefix) :] for name in registered if name.startswith(prefix)]
    if library.module is None and not operators:
        raise BuildError(
            f"solution {solution.name!r}: the library has neither a Python module nor operators",
            hint=f'Write PYBIND11_MODULE({MODULE_NAME}, m) {{ m.def("run", &run); }} '
            f"or TORCH_LIBRARY({MODULE_NAME}, m).",
        )
    everything = ModuleType(library.name)
    vars(everything).update(dict.fromkeys(name.partition(".")[0] for name in operators))
    vars(everything).update(vars(library.module) if library.module is not None else {})
    return everything
