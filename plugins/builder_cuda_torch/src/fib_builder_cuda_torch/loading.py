"""Loading libraries: modules by Python's own loader, operators by opening the file.

A process loads a library once, however often it is asked for: operators cannot be registered twice,
and a module cannot be unloaded.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_builder_cuda_torch.installation import find_torch
from fib_builder_cuda_torch.undefined import demangled
from fib_native_toolkit import build_failed, run_tool
from flashinfer_bench.errors import BuildError, CapabilityError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

LOADS = ".loads"
"""Name of the empty file beside a library of operators that says: it could be loaded."""

_INIT = re.compile(rb"(?<=\x00)PyInit_(\w+)(?=\x00)")
_WHAT = re.compile(r"^\s*what\(\):\s*(.+)$", re.MULTILINE)
_READY = "torch is loaded\n"
# torch's libraries without its Python modules: that takes a fifth of the time. The process ends
# without cleaning up, which is no business of a trial.
_TRIAL = f"""\
import ctypes, os, sys
ctypes.CDLL(sys.argv[1])
os.write(1, {_READY.encode()!r})
ctypes.CDLL(sys.argv[2])
os._exit(0)
"""

_guard = threading.RLock()
_libraries: dict[str, Library] = {}


class Library(NamedTuple):
    """A library in this process.

    Attributes
    ----------
    name : str
        Name of its module and of the namespace of its operators; no other library has it.
    module : ModuleType or None
        Its Python module, if it has one.
    """

    name: str
    module: Optional[ModuleType]


def load_library(path: Path, solution: str, *, operators: bool) -> Library:
    """Load a library, or return it if this process has loaded it before.

    Parameters
    ----------
    path : Path
        The file; its name without the ending is that of the module and the operators.
    solution : str
        The solution's name, for messages.
    operators : bool
        Whether it registers operators when it is loaded. If that fails it ends the process, so a
        process of its own tries it first.

    Raises
    ------
    BuildError
        If it cannot be loaded.
    """
    with _guard:
        known = _libraries.get(path.stem)
        if known is None:
            if operators:
                _try_elsewhere(path, solution)
            known = _libraries[path.stem] = Library(path.stem, _load(path, solution))
        return known


def _load(path: Path, solution: str) -> Optional[ModuleType]:
    import torch  # noqa: F401 - brings the libraries that this one needs

    try:
        # Looks up all symbols at once: one that is missing must not wait for the first call.
        opened = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise _not_loaded(solution, str(error), path) from None
    for name in _module_names(path, opened):
        return _import(name, path, solution)
    return None


def _module_names(path: Path, opened: ctypes.CDLL) -> list[str]:
    """Return the names under which the library can be imported; one at most, as a rule."""
    if hasattr(opened, f"PyInit_{path.stem}"):
        return [path.stem]
    found = {name.decode() for name in _INIT.findall(path.read_bytes())}
    return sorted(name for name in found if hasattr(opened, f"PyInit_{name}"))


def _import(name: str, path: Path, solution: str) -> ModuleType:
    there = sys.modules.get(name)
    try:
        spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
        if spec is None or spec.loader is None:
            raise ImportError(f"{path.name} is no extension module")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the module's start is the candidate's code
        reason = f"{type(error).__name__}: {error}"
    else:
        return module
    finally:
        # Some kinds of module enter themselves, and one with a name of its own may hide another.
        if there is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = there
    raise _not_loaded(solution, reason, path)


def _try_elsewhere(path: Path, solution: str) -> None:
    mark = path.with_name(LOADS)
    if mark.is_file() or not sys.executable:
        return
    try:
        torch = find_torch().library_path / "libtorch_python.so"
        result = run_tool([sys.executable, "-I", "-S", "-c", _TRIAL, torch, path], cwd=path.parent)
    except CapabilityError:
        return  # no process can be started
    if _READY not in result.output:
        return  # it is not the library's fault: let it show here what is wrong
    if result.returncode != 0:
        log = result.output.replace(_READY, "")
        raise _not_loaded(solution, _reason(result.returncode, log), path, log=log)
    try:
        mark.touch()
    except OSError:  # a read-only cache: the next process tries again
        return


def _reason(returncode: int, output: str) -> str:
    """Return why a trial failed: what an exception said, the last line, or the signal."""
    what = _WHAT.search(output)
    if what:
        return what.group(1)
    lines = [line for line in output.splitlines() if line.strip()]
    if returncode < 0 or not lines:
        return f"error: the process ended with status {returncode}"
    return lines[-1]


def _not_loaded(solution: str, reason: str, path: Path, *, log: str = "") -> BuildError:
    readable = demangled(reason).replace(f"{path}: ", "")
    error = build_failed(solution, "loading the library", readable)
    return BuildError(error.message, log=f"{readable}\n{log}".strip())
