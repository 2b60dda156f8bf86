"""Programs that know nothing of this package: what the environment asks for is done in them.

``FIB_ENABLE_APPLY=1`` and ``FIB_ENABLE_TRACING=1`` have effect in programs that import the package.
Those that do not are reached in two ways, both of which call `prepare`:

- Engines with their own plugins load it by an entry point: vLLM's ``vllm.general_plugins``,
  SGLang's ``sglang.srt.plugins``.
- Everywhere else a file in ``site-packages`` calls `at_startup` when an interpreter starts and one
  of the variables is set. It waits for the program to import torch, and does nothing before.

What is enabled is enabled at the first call that could matter, and not while modules are imported:
solutions are built then, in threads that may import the very module that is being imported.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import env

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from flashinfer_bench.routing import patch_manager, patch_points

logger = logging.getLogger(__name__)

_ANYTHING = (Exception, SystemExit)

_WAITS_FOR = "torch"

_lock = threading.RLock()
_prepared = False
_hook: Optional[patch_manager.ImportHook] = None


def at_startup() -> None:
    """Call `prepare` once the program has imported torch. It never raises."""
    global _hook
    try:
        if _hook is not None or not _anything_asked():
            return  # some interpreters read the file in site-packages twice
        if _WAITS_FOR in sys.modules:
            prepare()
            return
        from flashinfer_bench.routing.patch_manager import ImportHook

        _hook = ImportHook(prepare)
        _hook.wait_for({_WAITS_FOR})
    except _ANYTHING:  # the program that is starting must not notice
        logger.debug("waiting for %s failed", _WAITS_FOR, exc_info=True)


def prepare() -> None:
    """Have what the environment asks for enabled at the first call that could matter.

    Patches the functions whose calls may be of a definition in the dataset. Without a dataset, or
    without a variable that asks for anything, nothing happens. May be called again. It never
    raises.
    """
    global _prepared
    # Another thread that is at it may wait for what this one is importing.
    if not _lock.acquire(blocking=False):
        return
    try:
        if _hook is not None:
            _hook.wait_for(())
        if not (_prepared or env.in_command_line()) and _anything_asked():
            from flashinfer_bench.routing.patch_points import router

            _prepared = True
            names = frozenset(_names())
            if names:
                pending = _Pending(router, names)
                router.deferred = pending.enable
                router.push(pending)
            else:
                message = "nothing to apply or trace: there is no definition in %s"
                logger.warning(message, env.dataset_path())
    except _ANYTHING:  # the engine that is starting must not notice
        logger.warning("neither apply nor tracing could be prepared", exc_info=True)
    finally:
        _lock.release()


def _anything_asked() -> bool:
    return env.apply_mentioned() or env.tracing_mentioned()


def _names() -> Iterator[str]:
    """Return the definitions that may be of use, without reading any of them."""
    from flashinfer_bench.data import layout

    for path in layout.files(env.dataset_path() / layout.DEFINITIONS, ".json"):
        yield path.stem  # by convention the name; a name with odd characters is told by its file
    chosen = env.apply_path()
    for path in layout.files(chosen / layout.SOLUTIONS, ".json") if chosen is not None else ():
        # What cannot be read is told when it is really read.
        with suppress(OSError, ValueError, AttributeError):
            name = json.loads(path.read_bytes()).get("definition")
            if isinstance(name, str):
                yield name


class _Pending:
    """Takes the first call, and has it taken by what is enabled then.

    Parameters
    ----------
    router : Router
        Where calls arrive.
    names : collection of str
        Definitions whose calls may matter.
    """

    def __init__(self, router: patch_points.Router, names: Collection[str]) -> None:
        self._router = router
        self._names = names

    def __repr__(self) -> str:
        return "<what the environment asks for, at the first call>"

    def names(self) -> Collection[str]:
        return self._names

    def stop(self) -> None:
        self._router.deferred = None
        self._router.remove(self)

    def route(self, name: str, point: Any) -> patch_points.Call:
        """Return what enables everything, and then makes the call."""
        from flashinfer_bench.routing.patch_points import is_capturing, opaque

        router = self._router

        @opaque
        def first(args: Any, kwargs: Any, fallback: Any) -> Any:
            call = None
            if not is_capturing() and self.enable():  # else at a later call
                call = router.compose(router.top(), name, point)
            return (call or router.untaken(name))(args, kwargs, fallback)

        return first

    def enable(self) -> bool:
        """Enable everything; return False, at once, while another thread is at it."""
        if not _lock.acquire(blocking=False):
            return False
        try:
            if self in self._router.active:
                self._router.deferred = None
                _enable_all()
                self.stop()  # last: what is patched stays patched meanwhile
        finally:
            _lock.release()
        return True


def _enable_all() -> None:
    """Enable what the environment asks for; the engine that is running must not notice errors."""
    asked = {"apply": env.apply_mentioned(), "tracing": env.tracing_mentioned()}
    for name in [name for name, is_asked in asked.items() if is_asked]:
        try:
            importlib.import_module(f"flashinfer_bench.{name}.api").activate()
        except _ANYTHING:
            logger.warning("%s stays off", name, exc_info=True)
