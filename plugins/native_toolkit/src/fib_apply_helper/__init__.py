"""A small C++ extension: the fastest way for apply to recognise calls like earlier ones.

The code is in `native.cpp`. It is compiled against the installed torch, so a wheel cannot contain
it. `build_helper` compiles it once into the cache, in about fifteen seconds: ``fib apply build``
runs it, and `when_compiled` runs it in a separate process.
`flashinfer_bench.apply.dispatch.recognition` describes what is compared, and the alternative
without this extension.

A separate package from `fib_native_toolkit`, which is not needed while calls are answered.
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
from flashinfer_bench.data.storage import sha256_of
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[..., bool]

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("native.cpp")
_NAME = "fib_apply_native"  # name of the extension in `sys.modules`
_FILE = f"{_NAME}{EXTENSION_SUFFIXES[0]}"
_DIGEST = "sha256"
_FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_STANDARDS = ("-std=c++20", "-std=c++17")  # newer torch headers require the first


def helper_folder() -> Path:
    """Return the folder of the helper for this torch and Python, which may not exist."""
    import torch

    about = [torch.__version__, str(torch.version.git_version), torch.__file__, sys.version]
    about += [*EXTENSION_SUFFIXES, sys.platform, platform.machine(), _SOURCE.read_text()]
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()
    return cache_folder("apply-native") / digest[:24]


def build_helper() -> Path:
    """Compile the helper unless it exists; dispatchers created from now on use it.

    A damaged helper is compiled again.

    Returns
    -------
    Path
        The folder that contains it.

    Raises
    ------
    BuildError
        If it does not compile; `log` contains the compiler's output.
    CapabilityError
        If there is no compiler.
    StorageError
        If the cache is not writable.
    """
    found = build_once(helper_folder(), _compile, sound=_is_sound)
    helper.cache_clear()
    return found


# Without the current folder, whose files could shadow our modules.
_IN_BACKGROUND = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "import os; os.nice(19); import fib_apply_helper as it; it.build_helper()"
)
# That process must not enable anything, start further compilations, or open a device.
_UNSET = ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING", "FLASHINFER_TRACE_APPLY")
_SET = {"FIB_APPLY_HELPER": "0", "CUDA_VISIBLE_DEVICES": ""}

_waiting: list[weakref.WeakMethod[Callable[[], None]]] = []
_lock = threading.Lock()
_begun = False


def _after_fork() -> None:
    """Forget the waiting callbacks: the thread that would call them is in the parent."""
    global _waiting, _lock, _begun
    _waiting, _lock, _begun = [], threading.Lock(), False


os.register_at_fork(after_in_child=_after_fork)


def when_compiled(renew: Callable[[], None]) -> None:
    """Compile the helper in the background, and call a method when it is ready.

    Parameters
    ----------
    renew : bound method
        Called in another thread when the helper is ready. Not called if it does not compile: the
        reason is logged at level DEBUG, and reported by ``fib apply build``.
    """
    global _begun
    if not sys.executable or getattr(sys, "frozen", False):  # no Python executable
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
            start_new_session=True,  # not interrupted by Ctrl-C in the program
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
        except Exception:  # the other callbacks must still run
            logger.debug("the helper of apply could not be loaded", exc_info=True)


def _compile(into: Path) -> None:
    from fib_native_toolkit import find_cxx, run_tool  # not needed by calls

    compiler, log = find_cxx(), ""
    for standard in _STANDARDS:
        command = [*compiler.command, standard, *_FLAGS, *_paths(), "-o", str(into / _FILE)]
        done = run_tool(command, cwd=into)
        if not done.returncode:
            (into / _DIGEST).write_text(sha256_of(into / _FILE))
            return
        log += done.output
    raise BuildError(
        f"the helper of apply does not compile with {compiler} against this torch",
        hint="Calls are dispatched without it, more slowly.",
        log=log,
    )


def _is_sound(folder: Path) -> bool:
    """Return whether the library is complete: loading a damaged one can end the process."""
    try:
        return (folder / _DIGEST).read_text() == sha256_of(folder / _FILE) and is_complete(folder)
    except (OSError, ValueError):
        return False


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

    ``helper()(tensors, written, usual, masked, anywhere)`` creates a check; `usual` and `masked`
    are dispatch keys as numbers, see `flashinfer_bench.apply.dispatch.guards.Facts`.
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
    # A damaged library, or one built for another machine.
    except (BuildError, ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError):
        logger.warning("apply: the helper in the cache cannot be used", exc_info=True)
        return None
