"""Installing adapters while anybody wants the calls that they route, and only then.

The board says which definitions are applied or traced. For each adapter that is registered, the
targets whose calls can be of one of them are patched: at once if their library is imported, else
when it has been. When nobody wants them any more the originals are put back.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.integration import slots
from flashinfer_bench.integration.chosen import Chosen, Selection
from flashinfer_bench.integration.import_hook import ImportHook, is_here
from flashinfer_bench.integration.patch_manager import get_manager
from flashinfer_bench.integration.status import PatchStatus
from flashinfer_bench.integration.targets import NotFoundError, look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashinfer_bench.integration.patch_manager import Order, PatchManager
    from flashinfer_bench.integration.slots import Board
    from flashinfer_bench.integration.status import State
    from flashinfer_bench.plugins import Catalog

logger = logging.getLogger(__name__)

# Strict mode, a plugin that ends the program: whatever it is, the program that is running goes on.
_ANYTHING = (Exception, SystemExit)

# What our own program examines is not wrapped behind its back.
COMMAND_LINE = "flashinfer_bench.cli.main"

_UNWANTED = "nothing is applied or traced that its calls could be of"


class Installation:
    """Keeps what is patched in step with what is wanted.

    Parameters
    ----------
    board : Board
        Says what is wanted.
    manager : PatchManager
        Patches.
    catalog : callable
        Returns the catalog of plugins; called when anything is wanted for the first time.
    selection : callable, optional
        Returns which adapters the user wants. Default: what ``FIB_ADAPTERS`` says.
    """

    def __init__(
        self,
        board: Board,
        manager: PatchManager,
        catalog: Callable[[], Catalog],
        selection: Callable[[], Selection] = Selection.from_env,
    ) -> None:
        self._board = board
        self._manager = manager
        self._catalog = catalog
        self._selection = selection
        self._hook = ImportHook(lambda: self.update(wait=False, imported=True))
        self._chosen: Optional[list[Chosen]] = None
        self._suspended: frozenset[str] = frozenset()
        self._statuses: tuple[PatchStatus, ...] = ()
        self._problem = ""
        self._told: set[tuple[str, str]] = set()
        self._done_for: Optional[tuple[str, ...]] = ()
        self._dirty = False
        self._busy = False
        self._lock = threading.RLock()

    @property
    def problem(self) -> str:
        """Why there are no adapters at all; empty if there is nothing to say."""
        return self._problem

    @property
    def waiting_for(self) -> frozenset[str]:
        """The modules that are patched as soon as they are imported."""
        return self._hook.names

    def statuses(self) -> list[PatchStatus]:
        """Return what became of each target of each adapter, as of now.

        Empty as long as nothing has been applied or traced: plugins have not been looked for yet.
        """
        return [self._now(status) for status in self._statuses]

    def _now(self, status: PatchStatus) -> PatchStatus:
        if status.state != "patched":
            return status
        return self._manager.status(status.path) or status

    # -------------------------------------------------------------------------------- keeping up

    def update(self, *, wait: bool = True, imported: bool = False) -> None:
        """Patch and restore until all is as the board wants it; never raises.

        Parameters
        ----------
        wait : bool
            Whether to wait for another thread that is at it. An import must not: that thread may
            need what is being imported. It is left the work, then.
        imported : bool
            Whether anything but what is wanted has changed: a library has been imported, say.
            Otherwise nothing is done if the same is wanted as before.
        """
        if imported:
            self._done_for = None
        self._dirty = True
        # What comes up meanwhile, in whatever thread, is done before the lock is given up for good.
        while self._dirty and self._lock.acquire(blocking=wait):
            try:
                if self._busy:  # an adapter called us, or a finalizer: whoever called it goes on
                    return
                self._turn()
            finally:
                self._lock.release()

    def _turn(self) -> None:
        self._busy = True
        try:
            self._dirty = False
            self._keep_up()
        except _ANYTHING:
            self._done_for = None
            logger.warning("adapters are not kept up with what is wanted", exc_info=True)
        finally:
            self._busy = False

    def _keep_up(self) -> None:
        wanted = self._wanted()
        if wanted == self._done_for:
            return
        self._done_for = wanted
        if wanted:
            self._install(wanted)
        elif self._manager.patched or self._hook.names:
            self._clear()

    def _wanted(self) -> tuple[str, ...]:
        our_program = getattr(sys.modules.get(COMMAND_LINE), "running", False)
        if our_program or not self._board.in_use:
            return ()
        return tuple(self._board.wanted())

    def _clear(self) -> None:
        self._hook.wait_for(())
        self._manager.unpatch_all()
        self._statuses = tuple(self._unwanted(status) for status in self._statuses)

    def _unwanted(self, status: PatchStatus) -> PatchStatus:
        if status.state not in ("patched", "waiting"):
            return status
        reason = self._manager.kept.get(status.path, _UNWANTED)
        return PatchStatus(status.path, status.adapter, "unwanted", reason, status.version)

    def _install(self, wanted: Sequence[str]) -> None:
        statuses: list[PatchStatus] = []
        orders: list[Order] = []
        selection = self._selection()
        for chosen in self._adapters():
            refusal = selection.refusal(chosen.name) or self._suspension(chosen)
            if refusal is not None:
                statuses += chosen.statuses("off", refusal)
            elif not any(is_here(library) for library in chosen.libraries):
                statuses += [_waiting(chosen.name, path) for path in chosen.paths]
            else:
                of_it = chosen.orders()
                statuses += [] if of_it else chosen.statuses(*(chosen.problem or _NO_TARGETS))
                orders += of_it
        statuses += self._patch(orders, wanted)
        self._statuses = tuple(statuses)
        self._hook.wait_for(_awaited(self._statuses))
        self._tell(statuses)

    def _suspension(self, chosen: Chosen) -> Optional[str]:
        left_alone = self._suspended.intersection(chosen.libraries)
        return f"{', '.join(sorted(left_alone))} is left alone on request" if left_alone else None

    def _adapters(self) -> list[Chosen]:
        if self._chosen is None:
            try:
                self._chosen = [Chosen(entry) for entry in self._catalog().adapters]
                self._problem = ""
            except _ANYTHING as error:  # a broken plugin in strict mode
                self._problem = f"plugins cannot be loaded: {type(error).__name__}: {error}"
                logger.warning("no adapter is installed: %s", self._problem)
                self._chosen = []
        return self._chosen

    def _patch(self, orders: Iterable[Order], wanted: Sequence[str]) -> list[PatchStatus]:
        """Patch the targets that are wanted, restore the others, and return what came of each."""
        matching = _matcher(wanted)
        on: list[Order] = []
        off: list[Order] = []
        for order in orders:
            (on if matching(order.spec.definitions) else off).append(order)
        first: dict[str, str] = {}
        for order in on:
            first.setdefault(order.spec.path, order.adapter)
        manager = self._manager
        manager.unpatch([p for p in manager.patched if manager.adapter_of(p) != first.get(p)])
        statuses = manager.patch_all(on)
        for order in off:
            reason = manager.kept.get(order.spec.path, _UNWANTED)
            statuses.append(PatchStatus(order.spec.path, order.adapter, "unwanted", reason))
        return statuses

    def _tell(self, statuses: Iterable[PatchStatus]) -> None:
        """Log what somebody should know, once."""
        for status in statuses:
            key = (status.path, f"{status.state} {status.reason}")
            if key in self._told:
                continue
            self._told.add(key)
            level = logging.WARNING if status.state in ("failed", "mismatch") else logging.DEBUG
            logger.log(
                level,
                "%s of adapter '%s': %s %s",
                *(status.path, status.adapter, status.state, status.reason),
            )

    # ------------------------------------------------------------------------------------ others

    def suspend(self, library: str) -> list[PatchStatus]:
        """Restore a library, and leave it alone; return what became of each target."""
        self._suspended |= {library}
        self.update(imported=True)
        return self.statuses()

    def resume(self, library: str) -> list[PatchStatus]:
        """End what `suspend` began; return what became of each target."""
        self._suspended -= {library}
        self.update(imported=True)
        return self.statuses()

    def close(self) -> None:
        """Restore everything, and forget the adapters: the next `update` starts afresh."""
        with self._lock:
            self._clear()
            self._chosen, self._statuses, self._done_for = None, (), None

    def after_fork(self) -> None:
        """Work in a forked child: another thread may have been at it, and be gone."""
        self._lock = threading.RLock()
        self._hook.after_fork()
        if self._busy:
            self._busy, self._done_for = False, None


_NO_TARGETS: tuple[State, str] = ("missing", "the adapter names no target")


def _waiting(adapter: str, path: str) -> PatchStatus:
    """Return what a target waits for, whose library is not imported."""
    try:
        look_up(path)
    except NotFoundError as error:
        return PatchStatus(path, adapter, error.state, error.reason)
    return PatchStatus(path, adapter, "waiting", "its library is being imported")


def _awaited(statuses: Iterable[PatchStatus]) -> set[str]:
    """Return the modules whose import may make a waiting target available."""
    found: set[str] = set()
    for status in statuses:
        if status.state != "waiting":
            continue
        try:
            look_up(status.path)
        except NotFoundError as error:
            found.update([error.module] if error.module else [])
    return found


def _matcher(wanted: Sequence[str]) -> Callable[[tuple[str, ...]], bool]:
    """Return what says whether any definition that is wanted matches some patterns."""
    from fnmatch import filter as matching

    answers: dict[tuple[str, ...], bool] = {}

    def matches(patterns: tuple[str, ...]) -> bool:
        if patterns not in answers:
            answers[patterns] = any(
                pattern == "*" or matching(wanted, pattern) for pattern in patterns
            )
        return answers[patterns]

    return matches


made: Optional[Installation] = None
"""The installation of this process, if it has been needed yet; see `default`."""

_default_lock = threading.Lock()


def default() -> Installation:
    """Return the installation of this process: the board's, with the plugins of the catalog."""
    global made
    with _default_lock:
        if made is None:
            made = Installation(slots.board, get_manager(), _catalog)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=made.after_fork)
        return made


def _catalog() -> Catalog:
    from flashinfer_bench.plugins import default_catalog

    return default_catalog()
