"""Importing TileLang without letting it change more of the process than it needs.

``import tilelang`` puts two folders in front of ``sys.path`` (one holds a ``tvm`` that would hide
another one), sets ``PYTHONPATH`` for all child processes to the first of them, and replaces
``sys.excepthook`` by one that ends child processes of ``multiprocessing``. None of that is needed
afterwards. What stays are a finder for ``tvm.script``, loggers, and variables of its own:
``TL_CUTLASS_PATH``, ``TL_TEMPLATE_PATH`` and ``TVM_LIBRARY_PATH``, which it reads when it compiles.

What it compiles passes through temporary files that it never removes: a source and a library for
each kernel. They are made in a folder that goes away with the process.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fib_builder_tilelang.probe import find_tilelang, find_tvm_ffi
from flashinfer_bench.compile.toolkit import require_torch, scratch_folder
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        with _contained():
            _import()
        _keep_temporary_files()


def _import() -> None:
    try:
        import tilelang  # noqa: F401
    except Exception as error:
        raise CapabilityError(
            f"{find_tilelang()} cannot be imported: {type(error).__name__}: {error}",
            hint="python -c 'import tilelang' shows the whole error",
        ) from error


@contextmanager
def _contained() -> Iterator[None]:
    path, variable, hook = list(sys.path), os.environ.get("PYTHONPATH"), sys.excepthook
    try:
        yield
    finally:
        # Behind everything else: extension modules that it may still look for are there.
        sys.path[:] = path + [folder for folder in sys.path if folder not in path]
        sys.excepthook = hook
        if variable is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = variable


class _Temporary(ModuleType):
    """`tempfile`, for modules that leave behind what they make: it is made in a scratch folder.

    A folder that the caller names is kept to.
    """

    def __getattr__(self, name: str) -> Any:
        found = getattr(tempfile, name)
        if name not in ("NamedTemporaryFile", "mkstemp", "mkdtemp"):
            return found

        def in_scratch(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir") is None and len(args) < _DIR[name]:
                kwargs["dir"] = str(scratch_folder("tilelang"))
            return found(*args, **kwargs)

        return in_scratch


# How many arguments by position reach the one that names the folder.
_DIR = {"NamedTemporaryFile": 7, "mkstemp": 3, "mkdtemp": 3}


def _keep_temporary_files() -> None:
    temporary = _Temporary("tempfile")
    for name, module in list(sys.modules.items()):
        if name.startswith("tilelang.") and getattr(module, "tempfile", None) is tempfile:
            module.__dict__["tempfile"] = temporary
