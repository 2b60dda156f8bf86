"""Apply and tracing, enabled by environment variables, in programs that do not import the package.

``FIB_ENABLE_APPLY=1`` and ``FIB_ENABLE_TRACING=1`` take effect in programs that import the package.
Other programs are reached in two ways, both of which call `prepare`:

- Engines with a plugin system load it through an entry point: vLLM's ``vllm.general_plugins``,
  SGLang's ``sglang.srt.plugins``.
- Everywhere else, a file in ``site-packages`` calls `at_startup` when an interpreter starts and one
  of the variables is set. Nothing else happens until the program imports torch.

Apply and tracing are enabled at the first relevant call, not while modules are imported: enabling
them builds solutions, in threads that may import the very module that is being imported.

Importing this module imports neither torch nor pydantic.
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
    """Call `prepare` once the program has imported torch. Never raises."""
    global _hook
    try:
        if _hook is not None or not _anything_asked():
            return  # some interpreters process the file in site-packages twice
        if _WAITS_FOR in sys.modules:
            prepare()
            return
        from flashinfer_bench.routing.patch_manager import ImportHook

        _hook = ImportHook(prepare)
        _hook.wait_for({_WAITS_FOR})
    except _ANYTHING:  # the program that is starting must not notice
        logger.debug("waiting for %s failed", _WAITS_FOR, exc_info=True)


def prepare() -> None:
    """Arrange for apply and tracing to be enabled at the first relevant call.

    Patches the functions that may compute a definition of the dataset. Without a dataset, or if the
    environment enables neither, nothing happens. May be called again. Never raises.
    """
    global _prepared
    # Waiting could deadlock: another thread in here may need a module that this one is importing.
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
                message = "nothing to apply or trace: the dataset %s has no definition"
                logger.warning(message, env.dataset_path())
    except _ANYTHING:  # the engine that is starting must not notice
        logger.warning("apply and tracing stay off: preparing them failed", exc_info=True)
    finally:
        _lock.release()


def _anything_asked() -> bool:
    return env.apply_mentioned() or env.tracing_mentioned()


def _names() -> Iterator[str]:
    """Yield the names of definitions that may be called, without reading the definitions."""
    from flashinfer_bench.data import layout

    for path in layout.files(env.dataset_path() / layout.DEFINITIONS, ".json"):
        yield path.stem  # by convention the name, also where it has unusual characters
    chosen = env.apply_path()
    for path in layout.files(chosen / layout.SOLUTIONS, ".json") if chosen is not None else ():
        # Unreadable files are reported when they are loaded.
        with suppress(OSError, ValueError, AttributeError):
            name = json.loads(path.read_bytes()).get("definition")
            if isinstance(name, str):
                yield name


class _Pending:
    """A route that enables apply and tracing at the first call, and then passes the call on.

    Parameters
    ----------
    router : Router
        The router of all calls.
    names : collection of str
        Names of the definitions that may be called.
    """

    def __init__(self, router: patch_points.Router, names: Collection[str]) -> None:
        self._router = router
        self._names = names

    def __repr__(self) -> str:
        return "<apply and tracing, to be enabled at the first call>"

    def names(self) -> Collection[str]:
        return self._names

    def stop(self) -> None:
        self._router.deferred = None
        self._router.remove(self)

    def route(self, name: str, point: Any) -> patch_points.Call:
        """Return a function that enables everything, and then makes the call."""
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
        """Enable everything; return False at once while another thread does so."""
        if not _lock.acquire(blocking=False):
            return False
        try:
            if self in self._router.active:
                self._router.deferred = None
                _enable_all()
                self.stop()  # last, so that functions stay patched in the meantime
        finally:
            _lock.release()
        return True


def _enable_all() -> None:
    """Enable what the environment asks for; errors are logged, to leave the engine running."""
    asked = {"apply": env.apply_mentioned(), "tracing": env.tracing_mentioned()}
    for name in [name for name, is_asked in asked.items() if is_asked]:
        try:
            importlib.import_module(f"flashinfer_bench.{name}.api").activate()
        except _ANYTHING:
            logger.warning("%s stays off: enabling it failed", name, exc_info=True)
