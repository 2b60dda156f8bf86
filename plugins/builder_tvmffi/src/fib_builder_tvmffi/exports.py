"""The functions that a compiled library exports for TVM FFI, and their signatures.

The library is compiled with TVM FFI's metadata, which describes the parameters of each exported
function. A function that was exported without the macros has no metadata, and is not checked.
"""

from __future__ import annotations

import inspect
import json
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_native_toolkit import choose_style, declared_style
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flashinfer_bench.data import Definition, Solution

# In a symbol table each name stands between two zero bytes. The macros add the prefix to a
# function's name. Some names with it belong to the library itself, and compilers add a dot to the
# names of parts that they split off a function.
_NAME = re.compile(rb"(?<=\0)__tvm_ffi_(?!_metadata_|_doc_|_library_)([^.\0]+)(?=\0)")
_MOST_NAMED = 10


def exported_names(library: Path) -> list[str]:
    """Return the sorted names of the functions that a shared library exports.

    Parameters
    ----------
    library : Path
        The file, which is read but not loaded.
    """
    found = {match.decode("utf-8", "replace") for match in _NAME.findall(library.read_bytes())}
    return sorted(found)


def not_exported(solution: Solution, library: Path) -> BuildError:
    """Return the error for an entry symbol that is not exported by `library`."""
    symbol, names = solution.get_entry_symbol(), exported_names(library)
    near = get_close_matches(symbol, names, n=1)
    if near:
        hint = f"Did you mean {near[0]!r}?"
    elif names:
        hint = f"Exported: {', '.join(names[:_MOST_NAMED])}{', …' * (len(names) > _MOST_NAMED)}."
    else:
        hint = f"Write TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol}, <function>); into a source."
    return BuildError(f"solution {solution.name!r}: no source exports {symbol!r}", hint=hint)


class Signature(NamedTuple):
    """Parameters and result of an exported function.

    Attributes
    ----------
    parameters : tuple of str
        Their types in TVM FFI's notation: ``DLTensor*``, ``int``, …
    returns : str
        Type of the result; ``None`` for void.
    """

    parameters: tuple[str, ...]
    returns: str

    def __str__(self) -> str:
        return f"({', '.join(self.parameters)}) -> {self.returns}"


def read_signature(metadata: Optional[Mapping[str, Any]]) -> Optional[Signature]:
    """Return the signature in a function's metadata.

    Parameters
    ----------
    metadata : mapping, optional
        The result of ``Module.get_function_metadata``.

    Returns
    -------
    Signature or None
        None if there are no metadata, or their form is unknown.
    """
    try:
        schema = json.loads((metadata or {})["type_schema"])
        named = schema.get("named_args")
        # Releases up to 0.1.12 use a single list that starts with the result.
        members = [*named["return"], *named["params"]] if named else schema["args"]
        returns, *parameters = (str(member["type"]) for member in members)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Signature(tuple(parameters), returns)


def style_of(signature: Optional[Signature], definition: Definition, solution: Solution) -> bool:
    """Decide whether a function takes its outputs as arguments, and check that it can.

    Parameters
    ----------
    signature : Signature, optional
        Signature of the function. If it is unknown, a solution that does not state its calling
        convention is assumed to be destination-passing.
    definition, solution
        As for `fib_native_toolkit.choose_style`, whose rules apply.

    Returns
    -------
    bool
        True for destination-passing.

    Raises
    ------
    BuildError
        If the function cannot be called that way.
    """
    if signature is None:
        return declared_style(solution.spec) is not False
    positional = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"p{i}", positional) for i in range(len(signature.parameters))]
    symbol = solution.get_entry_symbol()
    try:
        style = choose_style(inspect.Signature(parameters), definition, solution)
    except BuildError as error:
        message = error.message.replace(f" {symbol}: ", f" {symbol}{signature}: ", 1)
        raise BuildError(message, hint=error.hint) from None
    if not style and definition.outputs and signature.returns == "None":
        raise BuildError(
            f"solution {solution.name!r}: {symbol}{signature} returns "
            f"nothing, but must return {', '.join(definition.outputs)}"
        )
    return style
