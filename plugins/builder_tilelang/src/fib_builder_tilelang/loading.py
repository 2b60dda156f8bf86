"""Importing TileLang without letting it change more of the process than it needs.

``import tilelang`` puts two folders in front of ``sys.path`` (one holds a ``tvm`` that would hide
another one), sets ``PYTHONPATH`` for all child processes to the first of them, and replaces
``sys.excepthook`` by one that ends child processes of ``multiprocessing``. None of that is needed
afterwards. What stays are a finder for ``tvm.script``, loggers, and variables of its own:
``TL_CUTLASS_PATH``, ``TL_TEMPLATE_PATH`` and ``TVM_LIBRARY_PATH``, which it reads when it compiles.
"""

from __future__ import annotations

import os
import sys
import threading

from fib_builder_tilelang.probe import find_tilelang, find_tvm_ffi
from flashinfer_bench.compile.toolkit import require_torch
from flashinfer_bench.errors import CapabilityError

_importing = threading.Lock()


def load_tilelang() -> None:
    """Import TileLang; does nothing where it has been imported before.

    Raises
    ------
    CapabilityError
        If it is not installed, does not fit what it needs, or cannot be imported.
    """
    with _importing:
        if "tilelang" in sys.modules:
            return
        find_tilelang()
        find_tvm_ffi()
        require_torch()
        path, variable, hook = list(sys.path), os.environ.get("PYTHONPATH"), sys.excepthook
        try:
            import tilelang  # noqa: F401
        except Exception as error:
            raise CapabilityError(
                f"{find_tilelang()} cannot be imported: {type(error).__name__}: {error}",
                hint="python -c 'import tilelang' shows the full error",
            ) from error
        finally:
            # Behind everything else: extension modules that it may still look for are there.
            sys.path[:] = path + [folder for folder in sys.path if folder not in path]
            sys.excepthook = hook
            os.environ.pop("PYTHONPATH", None)
            if variable is not None:
                os.environ["PYTHONPATH"] = variable
