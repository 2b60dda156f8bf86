"""Install adapters as needed, and track which functions are patched."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env, plugins
from flashinfer_bench.routing import patch_manager as patches
from flashinfer_bench.routing.patch_manager import NotPatchedError, Order, PatchStatus
from flashinfer_bench.routing.patch_points import Router, router

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.plugins import AdapterSpec, Catalog, Registered

_logger = logging.getLogger(__name__)

# Adapters must never end the running program, even with a broken plugin in strict mode.
_ANYTHING = (Exception, SystemExit)

# Main module of the `fib` command. In its own process nothing is patched.
COMMAND_LINE = "flashinfer_bench.cli.main"

WRONG = ("failed", "mismatch")
"""States that a user should be informed of."""

_UNWANTED = "nothing that it routes is applied or traced"


class Chosen:
    """An adapter of the catalog, created once its library is available."""

    def __init__(self, entry: Registered[AdapterSpec]) -> None:
        self.entry = entry
        paths = entry.spec.targets
        self.libraries = tuple(dict.fromkeys(path.partition(".")[0] for path in paths))

    def require_used(self) -> None:
        """Raise `NotPatchedError` if ``FIB_ADAPTERS`` excludes the adapter.

        The variable lists patterns of adapter names (see `fnmatch`). If it names adapters to use,
        only those are used; adapters whose pattern starts with ``-`` are never used.
        """
        name, words = self.entry.name, env.adapters()
        for pattern in (word[1:].strip() for word in words if word.startswith("-")):
            if fnmatchcase(name, pattern):
                raise NotPatchedError("off", f"FIB_ADAPTERS excludes it (-{pattern})")
        use = [word for word in words if not word.startswith("-")]
        if use and not any(fnmatchcase(name, pattern) for pattern in use):
            raise NotPatchedError("off", f"FIB_ADAPTERS allows only {', '.join(use)}")

    @cached_property
    def _adapter(self) -> Union[patches.Adapter, NotPatchedError]:
        answer, probe = self.entry.availability(), self.entry.check
        # The library is imported and its signatures are inspected: a probe that timed out in a busy
        # program does not rule it out.
        if not answer and not (probe is not None and probe.is_late):
            remedy = f" ({answer.remedy})" if answer.remedy else ""
            return NotPatchedError("mismatch", f"{answer.reason}{remedy}")
        try:
            made: Any = self.entry.load()()
            if not isinstance(made, patches.Adapter):
                raise TypeError(f"{self.entry.spec.factory} made {made!r}, which is not an Adapter")
        except _ANYTHING as error:  # a plugin's error must not affect others
            return NotPatchedError("failed", f"it cannot be created: {patches.told(error)}")
        return made

    def orders(self, *, late: bool = True) -> list[Order]:
        """Return the targets; raise `NotPatchedError` if the adapter cannot be used.

        Parameters
        ----------
        late : bool
            Whether to include targets that are known only once the library is imported.
        """
        adapter = self._adapter
        if isinstance(adapter, NotPatchedError):
            raise adapter
        try:
            specs: list[Any] = [*adapter.targets(), *(adapter.late_targets() if late else ())]
            wrong = [each for each in specs if not isinstance(each, patches.PatchSpec)]
            if wrong:
                raise TypeError(f"its targets have {wrong[0]!r}, which is not a PatchSpec")
        except _ANYTHING as error:
            raise NotPatchedError("failed", f"it has no targets: {patches.told(error)}") from None
        if late and not specs:
            raise NotPatchedError("missing", "the adapter names no target")
        name, origin = self.entry.name, self.entry.origin
        return [Order(name, spec, adapter.make_wrapper, origin) for spec in specs]

    def statuses(self, state: patches.State, reason: str) -> list[PatchStatus]:
        """Return the same status for all targets in the plugin's record."""
        name, origin = self.entry.name, self.entry.origin
        return [
            PatchStatus(path, name, state, reason, patches.version_of(path), provided_by=origin)
            for path in self.entry.spec.targets
        ]


class Installation:
    """Keeps the patched functions in line with what the router wants.

    Parameters
    ----------
    router : Router
        Determines what is wanted.
    manager : PatchManager
        Applies and removes patches.
    catalog : callable
        Returns the plugin catalog; called when something is first wanted.
    """

    def __init__(
        self, router: Router, manager: patches.PatchManager, catalog: Callable[[], Catalog]
    ) -> None:
        self._router = router
        self._manager = manager
        self._catalog = catalog
        self._hook = patches.ImportHook(lambda: self.update(wait=False, imported=True))
        self._chosen: Optional[list[Chosen]] = None
        self._suspended: frozenset[str] = frozenset()
        self._statuses: tuple[PatchStatus, ...] = ()
        self._told: set[tuple[str, str]] = set()
        self._done_for: Optional[tuple[str, ...]] = ()
        self._dirty = False
        self._busy = False
        self._lock = threading.RLock()

    def statuses(self) -> list[PatchStatus]:
        """Return the current status of each target of each adapter.

        Empty as long as nothing has been applied or traced, because plugins are loaded only then.
        """
        return [
            (self._manager.status(status.path) if status.state == "patched" else None) or status
            for status in self._statuses
        ]

    # ---------------------------------------------------------------------------- synchronisation

    def update(self, *, wait: bool = True, imported: bool = False) -> None:
        """Patch and restore until the state matches the router's; never raises.

        Parameters
        ----------
        wait : bool
            Whether to wait for another thread that is updating. An import must not wait: that
            thread may need the module being imported. The work is then left to that thread.
        imported : bool
            Whether something other than the wanted definitions has changed, for example because a
            library was imported. Otherwise nothing is done if the same definitions are wanted as
            before.
        """
        if imported:
            self._done_for = None
        self._dirty = True
        # Requests that arrive meanwhile, from any thread, are handled before the lock is released.
        while self._dirty and self._lock.acquire(blocking=wait):
            if self._busy:  # re-entered from an adapter or a finalizer
                self._lock.release()
                return
            self._busy, self._dirty = True, False
            try:
                self._keep_up()
            except _ANYTHING:
                self._done_for = None
                _logger.warning("adapters could not be brought up to date", exc_info=True)
            finally:
                self._busy = False
                self._lock.release()

    def _keep_up(self) -> None:
        our_program = getattr(sys.modules.get(COMMAND_LINE), "running", False)
        wanted = () if our_program else tuple(self._router.wanted())
        if wanted == self._done_for:
            return
        self._done_for = wanted
        if wanted:
            self._install(wanted)
        elif self._manager.patched or self._hook.names:
            self._clear()

    def _clear(self) -> None:
        self._hook.wait_for(())
        self._manager.unpatch_all()
        self._statuses = tuple(
            self._unwanted(each) if each.state in ("patched", "waiting") else each
            for each in self._statuses
        )

    def _unwanted(self, status: PatchStatus) -> PatchStatus:
        reason = self._manager.kept.get(status.path, _UNWANTED)
        return replace(status, state="unwanted", reason=reason, rebound=())

    def _install(self, wanted: Sequence[str]) -> None:
        statuses: list[PatchStatus] = []
        orders: list[Order] = []
        for chosen in self._adapters():
            try:
                chosen.require_used()
                left_alone = self._suspended.intersection(chosen.libraries)
                if left_alone:
                    libraries = ", ".join(sorted(left_alone))
                    raise NotPatchedError("off", f"{libraries} is left alone on request")
                if not any(map(patches.is_here, chosen.libraries)):
                    patches.look_up(chosen.entry.spec.targets[0])  # may raise "waiting"
                orders += chosen.orders()
            except NotPatchedError as error:
                statuses += chosen.statuses(error.state, error.reason)
        statuses += self._patch(orders, wanted)
        self._statuses = tuple(statuses)
        awaited = [_first_absent(each.path) for each in statuses if each.state == "waiting"]
        self._hook.wait_for(filter(None, awaited))
        for status in statuses:
            key = (status.path, f"{status.state} {status.reason}")
            if key not in self._told:
                self._told.add(key)
                level = logging.WARNING if status.state in WRONG else logging.DEBUG
                about = (status.path, status.adapter, status.state, status.reason)
                _logger.log(level, "%s of adapter '%s': %s %s", *about)

    def _adapters(self) -> list[Chosen]:
        if self._chosen is None:
            try:
                self._chosen = [Chosen(entry) for entry in self._catalog().adapters]
            except _ANYTHING as error:  # for example a broken plugin in strict mode
                reason = patches.told(error)
                _logger.warning("no adapter is installed: plugins cannot be loaded: %s", reason)
                self._chosen = []
        return self._chosen

    def _patch(self, orders: list[Order], wanted: Sequence[str]) -> list[PatchStatus]:
        """Patch the wanted targets, restore the others, and return the status of each."""
        on: list[Order] = []
        off: list[Order] = []
        for order in orders:
            (on if order.spec.wanted(wanted) else off).append(order)
        first = {order.spec.path: order.adapter for order in reversed(on)}
        manager = self._manager
        worn = [status for status in map(manager.status, manager.patched) if status is not None]
        manager.unpatch([each.path for each in worn if each.adapter != first.get(each.path)])
        statuses = manager.patch_all(on)
        return statuses + [self._unwanted(order.status("unwanted")) for order in off]

    # -------------------------------------------------------------------------------------- other

    def suspend(self, library: str, suspended: bool = True) -> list[PatchStatus]:
        """Restore a library and stop patching it, or resume; return the target statuses."""
        self._suspended = self._suspended - {library} | ({library} if suspended else set())
        self.update(imported=True)
        return self.statuses()

    def after_fork(self) -> None:
        """Reset in a forked child: a thread that no longer exists may have been updating."""
        self._lock = threading.RLock()
        if self._busy:
            self._busy, self._done_for = False, None


def _first_absent(path: str) -> str:
    """Return the outermost module of a path that is not imported; empty if all are."""
    modules = accumulate(path.split(".")[:-1], "{}.{}".format)
    return next((name for name in modules if not patches.is_here(name)), "")


_installation = Installation(router, patches.get_manager(), lambda: plugins.default_catalog())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_installation.after_fork)


def default() -> Installation:
    """Return the installation of this process, with its router and the plugin catalog."""
    return _installation
