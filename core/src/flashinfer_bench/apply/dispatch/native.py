"""A recogniser compiled on this machine: several times as quick as what torch has.

It is a small C++ extension (`native.cpp`) against the torch that is installed, so no wheel can hold
it. `build` compiles it once, in some fifteen seconds, into the cache: ``fib apply build`` does so,
and nothing unasked. From then on `maker` finds it there. Without it everything works as well, with
the checker of torch (`recognition`) or in Python.

Besides what that checker compares it asks the state of the thread, grad mode, and whether a tensor
that is written to shares memory with another one; and it looks at a tensor's sizes only after its
dispatch keys have shown that it is an ordinary one.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import sys
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.apply.dispatch.ordinary import facts, in_fresh_thread
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Check = Callable[..., bool]
    Maker = Callable[..., Check]

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("native.cpp")
_NAME = "fib_apply_native"
_FILE = f"{_NAME}{EXTENSION_SUFFIXES[0]}"
_DIGEST = "sha256"
_FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_STANDARDS = ("-std=c++20", "-std=c++17")  # newer headers of torch want the first


def folder() -> Path:
    """Return where the extension for this torch and this Python is, or would be."""
    import torch

    from flashinfer_bench.compile.toolkit import cache_folder

    about = [torch.__version__, str(torch.version.git_version), torch.__file__, sys.version]
    about += [*EXTENSION_SUFFIXES, sys.platform, platform.machine(), _SOURCE.read_text()]
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()
    return cache_folder("apply-native") / digest[:24]


def build() -> Path:
    """Compile the extension, unless that has been done; dispatchers made from now on use it.

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
    from flashinfer_bench.compile.toolkit import build_once

    found = build_once(folder(), _compile, sound=_is_sound)
    maker.cache_clear()
    return found


def _compile(into: Path) -> None:
    from flashinfer_bench.compile.toolkit import find_cxx, run_tool

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
    from flashinfer_bench.compile.cache import is_complete

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
def maker() -> Optional[Maker]:
    """Return what makes recognisers, if the extension is there and does what is wanted of it.

    Returns
    -------
    callable or None
        ``maker(tensors, written, anywhere=False)``: of tensors, and positions of those that are
        written to. With ``anywhere=True`` the state of the thread is not asked.
    """
    try:
        place = folder()
        from flashinfer_bench.compile.cache import is_complete, own_place

        found = next((each for each in (place, own_place(place)) if is_complete(each)), None)
        if found is None:
            return None
        if not _is_sound(found):
            raise ImportError(f"{found / _FILE} is not as it was compiled")
        made = _maker_of(found / _FILE)
        problem = in_fresh_thread(_problem_of, made)
    # A damaged library, or one for another machine.
    except (BuildError, ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError):
        logger.warning("apply: the helper in the cache cannot be used", exc_info=True)
        return None
    if problem is not None:
        logger.warning("apply: the helper in the cache is not used: it %s", problem)
        return None
    return made


def _maker_of(path: Path) -> Maker:
    """Load the extension, and return a maker that knows the usual keys of a thread."""
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = spec_from_file_location(_NAME, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no extension module")
    module = module_from_spec(spec)
    loader.exec_module(module)
    usual, masked = facts().usual, facts().masked

    def make(
        tensors: Sequence[torch.Tensor], written: Sequence[int] = (), *, anywhere: bool = False
    ) -> Check:
        check: Check = module.Recogniser(tuple(tensors), tuple(written), usual, masked, anywhere)
        return check

    return make


def _problem_of(make: Maker) -> Optional[str]:
    import torch

    from flashinfer_bench.apply.dispatch.recognition import comparing_problem

    problem = comparing_problem(lambda *tensors: make(tensors))
    if problem is not None:
        return problem
    memory, x = torch.zeros(12), torch.zeros(8)
    apart = make([x, x.clone()], [1])
    if apart(memory[:8], memory[4:]) is not False or apart(x, x.clone()) is not True:
        return "does not see that tensors share memory"
    with torch.autocast("cpu", torch.bfloat16):
        if apart(x, x.clone()) is not False or make([x], anywhere=True)(x) is not True:
            return "does not see autocast"
    wanting = torch.zeros(8, requires_grad=True)
    with torch.no_grad():
        if make([wanting])(wanting) is not True:
            return "does not see that no gradients are recorded"
    return None if make([wanting])(wanting) is False else "does not see grad mode"
