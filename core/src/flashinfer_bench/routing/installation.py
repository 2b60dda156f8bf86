"""Which functions are patched now: what is wanted of what is installed, and what became of it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.routing.import_hook import ImportHook, is_here
from flashinfer_bench.routing.patch_manager import (
    Adapter,
    NotFoundError,
    Order,
    PatchManager,
    PatchSpec,
    PatchStatus,
    get_manager,
    look_up,
    version_of,
)
from flashinfer_bench.routing.patch_points import router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.plugins import AdapterSpec, Catalog, Registered
    from flashinfer_bench.routing.patch_manager import State
    from flashinfer_bench.routing.patch_points import Router

logger = logging.getLogger(__name__)

# Strict mode, a plugin that ends the program: whatever it is, the program that is running goes on.
_ANYTHING = (Exception, SystemExit)

# What our own program examines is not wrapped behind its back.
COMMAND_LINE = "flashinfer_bench.cli.main"

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

    def refusal(self, name: str) -> Optional[str]:
        """Return why an adapter is not used; None if it is."""
        for pattern in self.leave:
            if fnmatchcase(name, pattern):
                return f"FIB_ADAPTERS leaves it out (-{pattern})"
        if self.use and not any(fnmatchcase(name, pattern) for pattern in self.use):
            return f"FIB_ADAPTERS uses {', '.join(self.use)} only"
        return None

    def idle(self, names: Sequence[str]) -> list[str]:
        """Return the patterns that are of no adapter there is."""
        return [
            word
            for word in (*self.use, *self.leave)
            if not any(fnmatchcase(name, word) for name in names)
        ]


class Problem(NamedTuple):
    """Why an adapter cannot be used."""

    state: State
    reason: str


class Chosen:
    """An adapter of the catalog, made when its library is there."""

    def __init__(self, entry: Registered[AdapterSpec]) -> None:
        self.entry = entry
        self.name = entry.name
        self.paths = tuple(entry.spec.targets)
        self.libraries = tuple(dict.fromkeys(path.partition(".")[0] for path in self.paths))
        self._made: Union[Adapter, Problem, None] = None
        self._told: set[str] = set()

    def _adapter(self) -> Union[Adapter, Problem]:
        answer, probe = self.entry.availability(), self.entry.check
        # The library is there, and its signatures are looked at: a probe that a busy program
        # has kept from answering in time says nothing against it.
        if not answer and not (probe is not None and probe.is_late):
            told = f"{answer.reason} ({answer.remedy})" if answer.remedy else answer.reason
            return Problem("mismatch", told)
        try:
            made: Any = self.entry.load()()
        except _ANYTHING as error:  # a plugin's code may raise anything, and costs only itself
            return self._failure("it cannot be made", error)
        if isinstance(made, Adapter):
            return made
        wrong = TypeError(f"{self.entry.spec.factory} made {made!r}, which is no Adapter")
        return self._failure("it cannot be made", wrong)

    def _failure(self, what: str, error: BaseException) -> Problem:
        """Tell once that it cannot be used: it may be asked again."""
        reason = f"{what}: {type(error).__name__}: {error}".splitlines()[0]
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("adapter '%s' is not used: %s", self.name, reason, exc_info=error)
        return Problem("failed", reason)

    def orders(self, *, late: bool = True) -> Union[list[Order], Problem]:
        """Return its targets, or why it cannot be used.

        Parameters
        ----------
        late : bool
            Whether to ask for those that are known only once the library is imported, too.
        """
        if self._made is None:
            self._made = self._adapter()
        adapter = self._made
        if isinstance(adapter, Problem):
            return adapter
        try:
            specs: list[Any] = [*adapter.targets(), *(adapter.late_targets() if late else ())]
            wrong = [each for each in specs if not isinstance(each, PatchSpec)]
            if wrong:
                raise TypeError(f"its targets have {wrong[0]!r}, which is no PatchSpec")
        except _ANYTHING as error:
            return self._failure("it has no targets", error)
        if late and not specs:
            return Problem("missing", "the adapter names no target")
        return [Order(self.name, spec, adapter.make_wrapper) for spec in specs]

    def statuses(self, state: State, reason: str) -> list[PatchStatus]:
        """Return the same for all targets of its record."""
        return [
            PatchStatus(path, self.name, state, reason, version_of(path.partition(".")[0]))
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
                logger.warning("adapters are not kept up with what is wanted", exc_info=True)
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
            self._unwanted(each.path, each.adapter, each.version)
            if each.state in ("patched", "waiting")
            else each
            for each in self._statuses
        )

    def _unwanted(self, path: str, adapter: str, version: str = "") -> PatchStatus:
        reason = self._manager.kept.get(path, _UNWANTED)
        return PatchStatus(path, adapter, "unwanted", reason, version)

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
                found = chosen.orders()
                if isinstance(found, Problem):
                    statuses += chosen.statuses(*found)
                else:
                    orders += found
        statuses += self._patch(orders, wanted)
        self._statuses = tuple(statuses)
        self._hook.wait_for({*_awaited(self._statuses)})
        self._tell(statuses)

    def _suspension(self, chosen: Chosen) -> Optional[str]:
        left_alone = self._suspended.intersection(chosen.libraries)
        return f"{', '.join(sorted(left_alone))} is left alone on request" if left_alone else None

    def _adapters(self) -> list[Chosen]:
        if self._chosen is None:
            try:
                self._chosen = [Chosen(entry) for entry in self._catalog().adapters]
            except _ANYTHING as error:  # a broken plugin in strict mode
                told = f"{type(error).__name__}: {error}"
                logger.warning("no adapter is installed: plugins cannot be loaded: %s", told)
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
        return statuses + [self._unwanted(order.spec.path, order.adapter) for order in off]

    def _tell(self, statuses: Iterable[PatchStatus]) -> None:
        """Log what somebody should know, once."""
        for status in statuses:
            key = (status.path, f"{status.state} {status.reason}")
            if key in self._told:
                continue
            self._told.add(key)
            level = logging.WARNING if status.state in ("failed", "mismatch") else logging.DEBUG
            told = (status.path, status.adapter, status.state, status.reason)
            logger.log(level, "%s of adapter '%s': %s %s", *told)

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


def _waiting(adapter: str, path: str) -> PatchStatus:
    """Return what a target waits for, whose library is not imported."""
    try:
        look_up(path)
    except NotFoundError as error:
        return PatchStatus(path, adapter, error.state, error.reason)
    return PatchStatus(path, adapter, "waiting", "its library is being imported")


def _awaited(statuses: Iterable[PatchStatus]) -> Iterator[str]:
    """Yield the modules whose import may make a waiting target available."""
    for status in statuses:
        try:
            if status.state == "waiting":
                look_up(status.path)
        except NotFoundError as error:
            if error.module:
                yield error.module


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


@dataclass(frozen=True)
class Surveyed:
    """One target, as `fib adapters list` shows it.

    Parameters
    ----------
    status : PatchStatus
        What became of it, or would.
    definitions : tuple of str
        Patterns of the definitions that its calls can be of; empty if they are not known.
    provided_by : str
        The distribution that has the adapter, and its version.
    """

    status: PatchStatus
    definitions: tuple[str, ...]
    provided_by: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        rest = {"definitions": list(self.definitions), "provided_by": self.provided_by}
        return self.status.as_dict() | rest


def survey(catalog: Catalog, selection: Selection, *, check: bool = False) -> list[Surveyed]:
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
    list of Surveyed
        In the order of selection. Refused adapters, whose name is claimed twice, come last.
    """
    found: list[Surveyed] = []
    manager = PatchManager()
    try:
        for entry in catalog.adapters:
            chosen = Chosen(entry)
            statuses, specs = _of_adapter(chosen, selection, manager if check else None)
            patterns = {spec.path: spec.definitions for spec in specs}
            for each in statuses:
                found.append(Surveyed(_dated(each), patterns.get(each.path, ()), entry.origin))
    finally:
        manager.unpatch_all()
    for conflict in catalog.conflicts:
        for claim in conflict.claims if conflict.kind == "adapter" else ():
            statuses = Chosen(claim).statuses("failed", conflict.sentence())
            found += [Surveyed(_dated(each), (), claim.origin) for each in statuses]
    return found


def _of_adapter(
    chosen: Chosen, selection: Selection, manager: Optional[PatchManager]
) -> tuple[list[PatchStatus], list[PatchSpec]]:
    """Return what there is to say of its targets, patched if there is a manager, and these."""
    refusal = selection.refusal(chosen.name)
    if refusal is not None:
        return chosen.statuses("off", refusal), []
    absent = _absent(chosen.libraries, import_them=manager is not None)
    if absent:
        return chosen.statuses("missing", absent), []
    orders = chosen.orders(late=manager is not None)
    if isinstance(orders, Problem):
        return chosen.statuses(*orders), []
    specs = [order.spec for order in orders]
    if manager is not None:
        return manager.patch_all(orders), specs
    paths = dict.fromkeys([*(spec.path for spec in specs), *chosen.paths])
    return [PatchStatus(path, chosen.name, "waiting", _LATER) for path in paths], specs


def _absent(libraries: Sequence[str], *, import_them: bool) -> str:
    """Return which library is not there, and why; empty if all are."""
    for library in libraries:
        try:
            if import_them:
                importlib.import_module(library)
            elif importlib.util.find_spec(library) is None:
                return f"{library} is not installed"
        except ModuleNotFoundError as error:
            if error.name == library:
                return f"{library} is not installed"
            return f"{library} cannot be imported: {error}"
        except _ANYTHING as error:  # a library may raise anything when it is imported
            return f"{library} cannot be imported: {type(error).__name__}: {error}"
    return ""


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
