"""Being told when a library has been imported.

A finder in `sys.meta_path` looks out for the modules that are waited for. It finds nothing itself:
it asks the others, and has the module spec that they found say when its module is complete. The
import system marks a spec before it runs the module, and takes the mark away afterwards, in
whatever way that ended; meanwhile the spec is of a class of ours that notices. The module, its
loader and the import are what they would be without. While nothing is waited for there is no
finder.
"""

from __future__ import annotations

import logging
import sys
import threading
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, Optional, cast

from flashinfer_bench.routing.patch_manager import is_complete, namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import ModuleType

logger = logging.getLogger(__name__)

_MARK = "_initializing"
_ANYTHING = (Exception,)


class _NoticingSpec(ModuleSpec):
    """The spec of a module that is being imported; an ordinary one again afterwards."""


def _get_mark(spec: ModuleSpec) -> Any:
    return vars(spec).get(_MARK, False)


def _set_mark(spec: ModuleSpec, value: Any) -> None:
    vars(spec)[_MARK] = value
    if not value:
        imported = vars(spec).pop("_fib_imported", None)
        spec.__class__ = ModuleSpec
        if imported is not None:
            imported(spec.name)


# The mark is a plain attribute of the base class, which is declared nowhere.
setattr(_NoticingSpec, _MARK, property(_get_mark, _set_mark))


def notice(spec: Any, imported: Callable[[str], None]) -> bool:
    """Have `imported` called with the module's name once the import of a module has ended.

    Parameters
    ----------
    spec : ModuleSpec
        Of a module that is about to be imported, or is being imported.
    imported : callable
        Called in the thread of the import, also if that fails. It must not raise.

    Returns
    -------
    bool
        Whether that can be done: not with a spec of somebody's own class.
    """
    if type(spec) is not ModuleSpec:
        return isinstance(spec, _NoticingSpec)
    vars(spec)["_fib_imported"] = imported
    spec.__class__ = _NoticingSpec
    return True


class ImportHook:
    """Tells when one of some modules has been imported.

    Parameters
    ----------
    imported : callable
        Called after the import, in its thread, which holds the lock of the module. What it raises
        is logged. Now and then it is called without need.
    """

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported
        self._names: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._asking = threading.local()

    @property
    def names(self) -> frozenset[str]:
        """The modules that are waited for."""
        return self._names

    def wait_for(self, names: Collection[str]) -> None:
        """Wait for these modules, and for no others.

        One that is being imported at this moment is told of, too. One that is complete is not.

        Parameters
        ----------
        names : collection of str
            Full names of modules. Empty: nothing is waited for.
        """
        with self._lock:
            self._names = frozenset(names)
            there = any(each is self for each in sys.meta_path)
            if there and not self._names:
                sys.meta_path.remove(self)
            elif self._names and not there:
                sys.meta_path.insert(0, self)
        for name in self._names:
            spec = namespace(sys.modules.get(name)).get("__spec__")
            if getattr(spec, _MARK, False):
                notice(spec, self._told)
                if not getattr(spec, _MARK, False):  # it has ended just now, and perhaps unnoticed
                    self._told(name)

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        """Return what the other finders find; see `importlib.abc.MetaPathFinder`.

        Raises
        ------
        Exception
            What they raise.
        """
        if fullname not in self._names:
            self._look_again()
            return None
        # Another such finder asks all finders, too, and must not be asked in turn without end.
        asking: set[str] = self._asking.__dict__.setdefault("names", set())
        if fullname in asking:
            return None
        asking.add(fullname)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = None if find is None else find(fullname, path, target)
                if spec is not None:
                    notice(spec, self._told)
                    return cast("ModuleSpec", spec)
        finally:
            asking.discard(fullname)
        return None

    def after_fork(self) -> None:
        """Work in a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()

    def _look_again(self) -> None:
        """Tell of modules that came in ways that cannot be noticed, at the next import of any."""
        if any(is_here(name) for name in self._names):
            self._told("")

    def _told(self, name: str) -> None:
        try:
            self._imported()
        except _ANYTHING:  # the import must not notice
            logger.warning("after the import of '%s'", name, exc_info=True)


def is_here(name: str) -> bool:
    """Return whether a module is imported, to its end."""
    module = sys.modules.get(name)
    return module is not None and is_complete(module)
