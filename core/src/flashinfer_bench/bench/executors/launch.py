"""Starting Python processes that import what this one can import."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flashinfer_bench import env
from flashinfer_bench.errors import RunnerFatalError

# The path of this process, not only its environment: a plugin that the judge finds has to be found
# by the candidate. Folder ``""``, the current one, is replaced before anything is imported from it.
_BOOTSTRAP = """\
import sys
path, module = sys.argv.pop(1), sys.argv.pop(1)
sys.path[:] = path.split(chr(0x1f))
from importlib import import_module
import_module(module).main(sys.argv[1:])
"""
_SEPARATOR = "\x1f"


def command(module: str, *arguments: object) -> list[str]:
    """Return the command line that runs ``main(arguments)`` of `module` in a new interpreter.

    Parameters
    ----------
    module : str
        Dotted name.
    *arguments : object
        What its ``main`` gets, as strings.

    Raises
    ------
    RunnerFatalError
        If it is not known where the interpreter is.
    """
    if not sys.executable:
        raise RunnerFatalError("the path of the Python interpreter is not known")
    path = _SEPARATOR.join(str(Path(entry).absolute()) for entry in sys.path)
    return [sys.executable, "-c", _BOOTSTRAP, path, module, *map(str, arguments)]


def environment(folder: Path, device: str) -> dict[str, str]:
    """Return the environment of a process whose current folder is another.

    Parameters
    ----------
    folder : Path
        Where it may write its temporary files.
    device : str
        What it works on: on the CPU it sees no GPU.
    """
    return {
        **os.environ,
        **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}),
        # What is judged is the solution, not what would be put in the place of what it calls.
        "FIB_ENABLE_APPLY": "0",
        "FIB_ENABLE_TRACING": "0",
        "FIB_CACHE_PATH": str(env.cache_path().absolute()),
        "TMPDIR": str(folder),
    }
