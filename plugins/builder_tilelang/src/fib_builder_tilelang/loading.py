"""Import TileLang without unnecessary side effects on the process.

``import tilelang`` inserts two folders at the start of ``sys.path`` (one contains a ``tvm`` that
would shadow another one), sets ``PYTHONPATH`` for all child processes to the first of them, and
replaces ``sys.excepthook`` with one that ends child processes of ``multiprocessing``. None of this
is needed afterwards. What remains are a finder for ``tvm.script``, loggers, and the variables
``TL_CUTLASS_PATH``, ``TL_TEMPLATE_PATH`` and ``TVM_LIBRARY_PATH``, which TileLang reads when it
compiles.
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
    """Import TileLang; does nothing if it is already imported.

    Raises
    ------
    CapabilityError
        If it is not installed, is incompatible with its dependencies, or cannot be imported.
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
            # Appended last: it may still need extension modules from these folders.
            sys.path[:] = path + [folder for folder in sys.path if folder not in path]
            sys.excepthook = hook
            os.environ.pop("PYTHONPATH", None)
            if variable is not None:
                os.environ["PYTHONPATH"] = variable
