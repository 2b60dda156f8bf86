"""Which functions are patched now: what is wanted of what is installed, and what became of it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.routing.patch_manager import (
    Adapter,
    ImportHook,
    NotPatchedError,
    Order,
    PatchManager,
    PatchSpec,
    PatchStatus,
    State,
    get_manager,
    is_here,
    look_up,
    told,
    version_of,
)
from flashinfer_bench.routing.patch_points import Router, router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashinfer_bench.plugins import AdapterSpec, Catalog, Registered

_logger = logging.getLogger(__name__)

# Strict mode, a plugin that ends the program: whatever it is, the program that is running goes on.
_ANYTHING = (Exception, SystemExit)

# What our own program examines is not wrapped behind its back.
COMMAND_LINE = "flashinfer_bench.cli.main"

WRONG = ("failed", "mismatch")
"""States that somebody should know of."""

_UNWANTED = "nothing is applied or traced that its calls could be of"


class Selection(NamedTuple):
    """What ``FIB_ADAPTERS`` says.

    Patterns of names of adapters (see `fnmatch`). With any to use, only those; never those to leave
    out, which are written with a ``-`` in front.
    """

    use: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()

    @classmethod
    def from_env(cls) -> Selection:
        """Read ``FIB_ADAPTERS``."""
        words = env.adapters()
        return cls(
            tuple(word for word in words if not word.startswith("-")),
            tuple(word[1:].strip() for word in words if word.startswith("-")),
        )

    def check(self, name: str) -> None:
        """Raise `NotPatchedError` if an adapter is not used."""
        for pattern in self.leave:
            if fnmatchcase(name, pattern):
                raise NotPatchedError("off", f"FIB_ADAPTERS leaves it out (-{pattern})")
        if self.use and not any(fnmatchcase(name, pattern) for pattern in self.use):
            raise NotPatchedError("off", f"FIB_ADAPTERS uses {', '.join(self.use)} only")

    def idle(self, names: Sequence[str]) -> list[str]:
        """Return the patterns that are of no adapter there is."""
        return [
            word
            for word in (*self.use, *self.leave)
            if not any(fnmatchcase(name, word) for name in names)
        ]


class Chosen:
    """An adapter of the catalog, made when its library is there."""

    def __init__(self, entry: Registered[AdapterSpec]) -> None:
        self.entry = entry
        self.paths = tuple(entry.spec.targets)
        self.libraries = tuple(dict.fromkeys(path.partition(".")[0] for path in self.paths))
        self._made: Union[Adapter, NotPatchedError, None] = None

    def _adapter(self) -> Union[Adapter, NotPatchedError]:
        answer, probe = self.entry.availability(), self.entry.check
        # The library is there, and its signatures are looked at: a probe that a busy program
        # has kept from answering in time says nothing against it.
        if not answer and not (probe is not None and probe.is_late):
            remedy = f" ({answer.remedy})" if answer.remedy else ""
            return NotPatchedError("mismatch", f"{answer.reason}{remedy}")
        try:
            made: Any = self.entry.load()()
            if not isinstance(made, Adapter):
                raise TypeError(f"{self.entry.spec.factory} made {made!r}, which is no Adapter")
        except _ANYTHING as error:  # a plugin's code may raise anything, and costs only itself
            return NotPatchedError("failed", f"it cannot be made: {told(error)}")
        return made

    def orders(self, *, late: bool = True) -> list[Order]:
        """Return its targets; raise `NotPatchedError` if it cannot be used.

        Parameters
        ----------
        late : bool
            Whether to ask for those that are known only once the library is imported, too.
        """
        if self._made is None:
            self._made = self._adapter()
        adapter = self._made
        if isinstance(adapter, NotPatchedError):
            raise adapter
        try:
            specs: list[Any] = [*adapter.targets(), *(adapter.late_targets() if late else ())]
            wrong = [each for each in specs if not isinstance(each, PatchSpec)]
            if wrong:
                raise TypeError(f"its targets have {wrong[0]!r}, which is no PatchSpec")
        except _ANYTHING as error:
            raise NotPatchedError("failed", f"it has no targets: {told(error)}") from None
        if late and not specs:
            raise NotPatchedError("missing", "the adapter names no target")
        name, origin = self.entry.name, self.entry.origin
        return [Order(name, spec, adapter.make_wrapper, origin) for spec in specs]

    def statuses(self, state: State, reason: str) -> list[PatchStatus]:
        """Return the same for all targets of its record."""
        about = (self.entry.name, state, reason)
        return [
            PatchStatus(
                *(path, *about, version_of(path.partition(".")[0])),
                provided_by=self.entry.origin,
            )
            for path in self.paths
        ]


class Installation:
    """Keeps what is patched in step with what is wanted.

    Parameters
    ----------
    router : Router
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
        router: Router,
        manager: PatchManager,
        catalog: Callable[[], Catalog],
        selection: Callable[[], Selection] = Selection.from_env,
    ) -> None:
        self._router = router
        self._manager = manager
        self._catalog = catalog
        self._selection = selection
        self._hook = ImportHook(lambda: self.update(wait=False, imported=True))
        self._chosen: Optional[list[Chosen]] = None
        self._suspended: frozenset[str] = frozenset()
        self._statuses: tuple[PatchStatus, ...] = ()
        self._told: set[tuple[str, str]] = set()
        self._done_for: Optional[tuple[str, ...]] = ()
        self._dirty = False
        self._busy = False
        self._lock = threading.RLock()

    def statuses(self) -> list[PatchStatus]:
        """Return what became of each target of each adapter, as of now.

        Empty as long as nothing has been applied or traced: plugins have not been looked for yet.
        """
        return [
            (self._manager.status(status.path) if status.state == "patched" else None) or status
            for status in self._statuses
        ]

    # -------------------------------------------------------------------------------- keeping up

    def update(self, *, wait: bool = True, imported: bool = False) -> None:
        """Patch and restore until all is as the router wants it; never raises.

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
            if self._busy:  # an adapter called us, or a finalizer: whoever called it goes on
                self._lock.release()
                return
            self._busy, self._dirty = True, False
            try:
                self._keep_up()
            except _ANYTHING:
                self._done_for = None
                _logger.warning("adapters are not kept up with what is wanted", exc_info=True)
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
        selection = self._selection()
        for chosen in self._adapters():
            try:
                selection.check(chosen.entry.name)
                left_alone = self._suspended.intersection(chosen.libraries)
                if left_alone:
                    libraries = ", ".join(sorted(left_alone))
                    raise NotPatchedError("off", f"{libraries} is left alone on request")
                if not any(is_here(library) for library in chosen.libraries):
                    look_up(chosen.paths[0])  # raises what it waits for
                orders += chosen.orders()
            except NotPatchedError as error:
                statuses += chosen.statuses(error.state, error.reason)
        statuses += self._patch(orders, wanted)
        self._statuses = tuple(statuses)
        awaited = set()
        for status in statuses:
            try:
                if status.state == "waiting":
                    look_up(status.path)
            except NotPatchedError as error:
                awaited.add(error.module)
        self._hook.wait_for(awaited - {""})
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
            except _ANYTHING as error:  # a broken plugin in strict mode
                reason = told(error)
                _logger.warning("no adapter is installed: plugins cannot be loaded: %s", reason)
                self._chosen = []
        return self._chosen

    def _patch(self, orders: Iterable[Order], wanted: Sequence[str]) -> list[PatchStatus]:
        """Patch the targets that are wanted, restore the others, and return what came of each."""
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

    # ------------------------------------------------------------------------------------ others

    def suspend(self, library: str, suspended: bool = True) -> list[PatchStatus]:
        """Restore a library and leave it alone, or end that; return what became of each target."""
        self._suspended = self._suspended - {library} | ({library} if suspended else set())
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
        if self._busy:
            self._busy, self._done_for = False, None


made: Optional[Installation] = None
"""The installation of this process, if it has been needed yet; see `default`."""

_default_lock = threading.Lock()


def default() -> Installation:
    """Return the installation of this process: the router's, with the plugins of the catalog."""
    global made
    with _default_lock:
        if made is None:
            from flashinfer_bench.plugins import default_catalog

            made = Installation(router, get_manager(), default_catalog)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=made.after_fork)
        return made


_LATER = "patched when it is imported, while a definition that it routes is applied or traced"


def survey(catalog: Catalog, selection: Selection, *, check: bool = False) -> list[PatchStatus]:
    """Return what there is to say of each target of each adapter.

    Parameters
    ----------
    catalog : Catalog
        The plugins.
    selection : Selection
        Which adapters the user wants.
    check : bool
        Whether to import the libraries, patch every target, and restore it. Otherwise no library is
        imported, and what is installed counts as good.

    Returns
    -------
    list of PatchStatus
        In the order of selection. Refused adapters, whose name is claimed twice, come last.
    """
    found: list[PatchStatus] = []
    manager = PatchManager()
    try:
        for chosen in map(Chosen, catalog.adapters):
            try:
                selection.check(chosen.entry.name)
                _require(chosen.libraries, import_them=check)
                orders = chosen.orders(late=check)
            except NotPatchedError as error:
                found += chosen.statuses(error.state, error.reason)
                continue
            if check:
                found += manager.patch_all(orders)
            else:
                statuses = [order.status("waiting", _LATER) for order in orders]
                known = {each.path for each in statuses}
                late = (e for e in chosen.statuses("waiting", _LATER) if e.path not in known)
                found += [*statuses, *late]
    finally:
        manager.unpatch_all()
    for conflict in catalog.conflicts:
        for claim in conflict.claims if conflict.kind == "adapter" else ():
            found += Chosen(claim).statuses("failed", conflict.sentence())
    return [_dated(each) for each in found]


def _require(libraries: Sequence[str], *, import_them: bool) -> None:
    """Raise if a library is not there."""
    for library in libraries:
        missing = f"{library} is not installed"
        try:
            if import_them:
                importlib.import_module(library)
            elif importlib.util.find_spec(library) is None:
                raise NotPatchedError("missing", missing)
        except NotPatchedError:
            raise
        except _ANYTHING as error:  # a library may raise anything when it is imported
            if not (isinstance(error, ModuleNotFoundError) and error.name == library):
                missing = f"{library} cannot be imported: {told(error)}"
            raise NotPatchedError("missing", missing) from None


def _dated(status: PatchStatus) -> PatchStatus:
    """Return a status with the version of the library, which is imported or only installed."""
    library = status.path.partition(".")[0]
    version = status.version or version_of(library) or _installed_version(library)
    return replace(status, version=version)


@lru_cache(maxsize=64)
def _installed_version(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    for name in packages_distributions().get(library, [library]):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
