"""Load libraries: modules with Python's own loader, operators by opening the file.

A process loads a library only once: operators cannot be registered twice, and a module cannot be
unloaded.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fib_native_toolkit import build_failed, run_tool
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from types import ModuleType

    from flashinfer_bench.errors import BuildError

_INIT = re.compile(rb"(?<=\x00)PyInit_(\w+)(?=\x00)")
_MANGLED = re.compile(r"\b_Z\w+")

_guard = threading.RLock()
_libraries: dict[str, Optional[ModuleType]] = {}


def load_library(path: Path, solution: str) -> Optional[ModuleType]:
    """Load a library unless this process has loaded it before, and return its Python module.

    Parameters
    ----------
    path : Path
        The file; its stem is the name of the module and the operators.
    solution : str
        Name of the solution, for messages.

    Returns
    -------
    ModuleType or None
        None if the library has only operators.

    Raises
    ------
    BuildError
        If it cannot be loaded.
    """
    with _guard:
        if path.stem not in _libraries:
            _libraries[path.stem] = _load(path, solution)
        return _libraries[path.stem]


def _load(path: Path, solution: str) -> Optional[ModuleType]:
    import torch  # noqa: F401 - loads libraries that the extension needs

    try:
        # Resolves all symbols now, so that a missing one is not found only at the first call.
        opened = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise _not_loaded(solution, str(error), path) from None
    # Usually the library's name, but the module may define another one.
    names = [path.stem, *sorted(map(bytes.decode, _INIT.findall(path.read_bytes())))]
    name = next((name for name in names if hasattr(opened, f"PyInit_{name}")), None)
    if name is None:
        return None
    there = sys.modules.get(name)
    try:
        spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - module initialisation is candidate code
        reason = f"{type(error).__name__}: {error}"
    else:
        return module
    finally:
        # Some modules register themselves, and a custom name may shadow another module.
        if there is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = there
    raise _not_loaded(solution, reason, path)


def _not_loaded(solution: str, reason: str, path: Path) -> BuildError:
    reason = reason.replace(f"{path}: ", "")
    hint = None
    if "undefined symbol" in reason:
        hint = "Is a source file missing, or a library in compile_options.ldflags?"
        try:
            names = _MANGLED.findall(reason)  # demangled if c++filt is available
            plain = run_tool(["c++filt", *names], cwd=Path("/")).output.splitlines()
            for name, readable in zip(names, plain, strict=False):
                reason = reason.replace(name, readable)
        except CapabilityError:
            pass
    return build_failed(solution, "loading the library", reason, hint=hint)
