"""The functions that a compiled library exports for TVM FFI."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.data import Solution

# In a table of symbol names each name stands between two zero bytes. The macros put the prefix
# before a function's name; some names are the library's own, and compilers put a dot into those of
# the parts that they split off a function.
_NAME = re.compile(rb"(?<=\0)__tvm_ffi_(?!_metadata_|_doc_|_library_)([^.\0]+)(?=\0)")
_MOST_NAMED = 10


def exported_names(library: Path) -> list[str]:
    """Return the names of the functions that a shared library exports, sorted.

    Parameters
    ----------
    library : Path
        The file; it is read, not loaded.
    """
    found = {match.decode("utf-8", "replace") for match in _NAME.findall(library.read_bytes())}
    return sorted(found)


def require_exported(solution: Solution, library: Path) -> None:
    """Check that a library exports a solution's entry symbol.

    Raises
    ------
    BuildError
        If it does not; the hint names the nearest function that it does export. Also if there is
        no library, because a flag has sent it elsewhere or has kept the linker from its work.
    """
    if not library.is_file():
        raise BuildError(
            f"solution {solution.name!r}: linking left no library",
            hint="Does a flag in compile_options.ldflags, such as -o, send it elsewhere?",
        )
    names = exported_names(library)
    if solution.get_entry_symbol() not in names:
        raise not_exported(solution, names)


def not_exported(solution: Solution, names: list[str]) -> BuildError:
    """Return the error for an entry symbol that is not among the exported `names`."""
    symbol = solution.get_entry_symbol()
    return BuildError(
        f"solution {solution.name!r}: no source exports {symbol!r}", hint=_hint(symbol, names)
    )


def _hint(symbol: str, names: list[str]) -> str:
    if not names:
        return f"Write TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol}, <function>); into a source."
    near = get_close_matches(symbol, names, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    listed = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return f"Exported: {listed}."
