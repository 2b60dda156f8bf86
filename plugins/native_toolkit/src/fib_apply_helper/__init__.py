"""The quickest way for apply to recognise calls like those seen before: a small C++ extension.

`native.cpp` has it. It is made against the torch that is installed, so no wheel can hold it.
`build_helper` compiles it once, in some fifteen seconds, into the cache: ``fib apply build`` does
so, and `when_compiled` in a process of its own. `flashinfer_bench.apply.dispatch.recognition` says
what is compared, and what there is without it.

A package beside `fib_native_toolkit`: a call that apply takes needs nothing of that.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import subprocess
import sys
import threading
import weakref
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.compile.cache import build_once, cache_folder, is_complete, own_place
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[..., bool]

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("native.cpp")
_NAME = "fib_apply_native"  # of the extension: it is put into `sys.modules` under that name
_FILE = f"{_NAME}{EXTENSION_SUFFIXES[0]}"
_DIGEST = "sha256"
_FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_STANDARDS = ("-std=c++20", "-std=c++17")  # newer headers of torch want the first


def helper_folder() -> Path:
    """Return where the helper for this torch and this Python is, or would be."""
    import torch

    about = [torch.__version__, str(torch.version.git_version), torch.__file__, sys.version]
    about += [*EXTENSION_SUFFIXES, sys.platform, platform.machine(), _SOURCE.read_text()]
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()
    return cache_folder("apply-native") / digest[:24]


def build_helper() -> Path:
    """Compile the helper, unless that has been done; dispatchers made from now on use it.

    One that has been damaged is compiled anew.

    Returns
    -------
    Path
        The folder that it is in.

    Raises
    ------
    BuildError
        If it does not compile; `log` has all that the compiler said.
    CapabilityError
        If there is no compiler.
    StorageError
        If the cache cannot be written.
    """
    found = build_once(helper_folder(), _compile, sound=_is_sound)
    helper.cache_clear()
    return found


# Without the current folder: whatever is called like a module there is not ours.
_IN_BACKGROUND = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "import os; os.nice(19); import fib_apply_helper as it; it.build_helper()"
)
# Nothing is enabled in that process, nor compiled by it in turn, and no device opened.
_UNSET = ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING", "FLASHINFER_TRACE_APPLY")
_SET = {"FIB_APPLY_HELPER": "0", "CUDA_VISIBLE_DEVICES": ""}

_waiting: list[weakref.WeakMethod[Callable[[], None]]] = []
_lock = threading.Lock()
_begun = False


def _after_fork() -> None:
    """Forget who waits: the thread that would tell them is in the parent."""
    global _waiting, _lock, _begun
    _waiting, _lock, _begun = [], threading.Lock(), False


os.register_at_fork(after_in_child=_after_fork)


def when_compiled(renew: Callable[[], None]) -> None:
    """Have the helper compiled in the background, once for each process that asks.

    Parameters
    ----------
    renew : bound method
        Called in another thread when it is there. Not called if it does not compile: the reason is
        logged at level DEBUG, and ``fib apply build`` says it.
    """
    global _begun
    if not sys.executable or getattr(sys, "frozen", False):  # there is no Python to start
        return
    with _lock:
        _waiting.append(weakref.WeakMethod(renew))
        if not _begun:
            _begun = True
            threading.Thread(target=_compile_aside, name="fib-apply-helper", daemon=True).start()


def _compile_aside() -> None:
    given = {name: text for name, text in os.environ.items() if name not in _UNSET}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IN_BACKGROUND],
            env={**given, **_SET},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,  # Ctrl-C ends the program; this goes on for the next one
        )
    except OSError as error:
        logger.debug("the helper of apply cannot be compiled: %s", error)
        return
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        logger.debug("the helper of apply does not compile: %s", said[-2000:])
        return
    with _lock:
        helper.cache_clear()
        found = [each() for each in _waiting]
        _waiting.clear()
    for renew in filter(None, found):
        try:
            renew()
        except Exception:  # the others are to be told nevertheless
            logger.debug("the helper of apply could not be loaded", exc_info=True)


def _compile(into: Path) -> None:
    from fib_native_toolkit import find_cxx, run_tool  # loads much that a call does not need

    compiler, log = find_cxx(), ""
    for standard in _STANDARDS:
        command = [*compiler.command, standard, *_FLAGS, *_paths(), "-o", str(into / _FILE)]
        done = run_tool(command, cwd=into)
        if not done.returncode:
            (into / _DIGEST).write_text(_digest(into / _FILE))
            return
        log += done.output
    raise BuildError(
        f"the helper of apply does not compile with {compiler} against this torch",
        hint="Calls are dispatched without it, more slowly.",
        log=log,
    )


def _is_sound(folder: Path) -> bool:
    """Return whether a library is there, whole: loading a damaged one can end the process."""
    try:
        return (folder / _DIGEST).read_text() == _digest(folder / _FILE) and is_complete(folder)
    except (OSError, ValueError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _paths() -> list[str]:
    import sysconfig

    import torch

    root = Path(torch.__file__).parent
    include, more = root / "include", root / "include" / "torch" / "csrc" / "api" / "include"
    return [
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{place}" for place in (include, more, sysconfig.get_paths()["include"])),
        str(_SOURCE),
        f"-L{root / 'lib'}",
        *("-lc10", "-ltorch_cpu", "-ltorch_python"),
    ]


@lru_cache(maxsize=1)
def helper() -> Optional[Callable[..., Check]]:
    """Return the class of checks, if the helper has been compiled.

    ``helper()(tensors, written, usual, masked, anywhere)`` makes a check; `usual` and `masked` are
    dispatch keys as numbers, see `flashinfer_bench.apply.dispatch.guards.Facts`.
    """
    try:
        place = helper_folder()
        found = next((each for each in (place, own_place(place)) if is_complete(each)), None)
        if found is None:
            return None
        if not _is_sound(found):
            raise ImportError(f"{found / _FILE} has changed since it was compiled")
        loader = ExtensionFileLoader(_NAME, str(found / _FILE))
        spec = spec_from_file_location(_NAME, found / _FILE, loader=loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        made: Callable[..., Check] = module.Recogniser
        return made
    # A damaged library, or one for another machine.
    except (BuildError, ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError):
        logger.warning("apply: the helper in the cache cannot be used", exc_info=True)
        return None
