"""Install an adapter's wrappers in place of a library's functions, and remove them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import itertools
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, ModuleType
from typing import Any, Literal, NamedTuple, Optional, Union, cast

from flashinfer_bench.errors import CapabilityError, ConfigError

Original = Callable[..., Any]
Expects = Callable[[Original], Optional[str]]
"""Inspects an original; returns why this version of it is not supported, or None."""
WrapperFactory = Callable[["PatchSpec", Original], Original]

_logger = logging.getLogger(__name__)

Kind = Literal["function", "method"]
"""Kind of a target: a function of a module, or a method of a class."""

State = Literal[
    "patched", "waiting", "missing", "mismatch", "unroutable", "failed", "off", "unwanted"
]
"""State of a target.

- ``patched``: calls go through the wrapper.
- ``waiting``: its library is not imported yet; it is patched when that happens.
- ``missing``: the library is imported, or not installed, but has no such function.
- ``mismatch``: the installed version of the library has it in an unsupported form.
- ``unroutable``: no definition can describe its calls.
- ``failed``: it exists but could not be patched.
- ``off``: the user has turned off its adapter, or all adapters.
- ``unwanted``: its calls match no enabled definition.
"""


@dataclass(frozen=True)
class PatchStatus:
    """The state of one target, and the reason.

    Parameters
    ----------
    path : str
        The target: ``"library.module.function"``.
    adapter : str
        Name of the adapter that the target belongs to.
    state : str
        See `State`.
    reason : str
        Why it is not patched, or a remark; may be empty.
    version : str
        Version of the installed library; empty if unknown.
    rebound : tuple of str
        Other places where the original was found and replaced: ``"module.name"``.
    definitions : tuple of str
        Patterns of the definitions that its calls may match; empty if unknown.
    provided_by : str
        The distribution that provides the adapter, and its version.
    """

    path: str
    adapter: str
    state: State
    reason: str = ""
    version: str = ""
    rebound: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    provided_by: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible data."""
        return asdict(self)


class NotPatchedError(CapabilityError):
    """A target is not patched at the moment.

    Parameters
    ----------
    state : str
        See `State`; ``"waiting"`` if an import may make it patchable.
    reason : str
        The reason.
    """

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state: State = state
        self.reason = reason


class UnroutableError(Exception):
    """No definition describes a call; the original handles it.

    Parameters
    ----------
    reason : str
        Key under which such calls are counted: a constant text for each cause, without values.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class PatchSpec:
    """One function or method that an adapter wraps.

    Parameters
    ----------
    path : str
        Where callers find it: ``"library.module.function"`` or ``"library.module.Class.method"``.
    kind : str
        ``"function"`` or ``"method"``.
    name : str
        Name within the adapter, by which `Adapter.make_wrapper` selects the wrapper: ``"plan"``,
        ``"run"``.
    ctx_key : str
        Key shared by targets of one adapter, if a call of one must be remembered for a later call
        of another.

    Raises
    ------
    ConfigError
        If the path is not dotted, or the kind is unknown.
    """

    path: str
    kind: Kind
    name: str
    ctx_key: str = ""
    # Excluded from comparisons: the same target may be requested twice with different function
    # objects.
    expects: Optional[Expects] = field(default=None, compare=False)
    definitions: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        parts = self.path.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise ConfigError(f"{self.path!r} is not a dotted path like 'library.module.function'")
        if self.kind not in ("function", "method"):
            raise ConfigError(f"{self.path}: kind {self.kind!r} is neither 'function' nor 'method'")

    @property
    def library(self) -> str:
        """The top-level package of the path."""
        return self.path.partition(".")[0]

    def wanted(self, names: Iterable[str]) -> bool:
        """Return whether its calls may match one of the definitions `names`."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.definitions)


class Adapter(ABC):
    """Defines which functions of a library to wrap, and how.

    Constructed without arguments, even if the library is not installed. An adapter does not patch
    anything itself; a `PatchManager` does.

    A wrapper must be transparent. While neither apply nor tracing is enabled, it calls the original
    once, with the unchanged arguments, and returns the same object. Exceptions of the original
    propagate to the caller. Errors in the wrapper's own work do not: it calls the original instead.
    """

    @abstractmethod
    def targets(self) -> Sequence[PatchSpec]:
        """Return the functions to wrap: the same each time, and without importing the library."""

    def late_targets(self) -> Sequence[PatchSpec]:
        """Return additional functions to wrap, once the library is imported.

        For libraries that list their own functions at run time. The method may inspect the library,
        which is in `sys.modules` by then, but must not import anything else. Called each time the
        adapter is installed. Default: none.
        """
        return ()

    @abstractmethod
    def make_wrapper(self, spec: PatchSpec, orig: Original) -> Original:
        """Return a function that replaces `orig`.

        Parameters
        ----------
        spec : PatchSpec
            An element of `targets` or `late_targets`.
        orig : callable
            The original function. For a method, its first argument is the object.

        Returns
        -------
        callable
            Has the name, documentation and signature of `orig`: use `functools.wraps`.
        """


_NOTHING = object()
_MARK = "_initializing"

# A type without a public name. Libraries that create names on demand use other types.
_LAZY = getattr(importlib.util, "_LazyModule", None)


@dataclass(frozen=True)
class Target:
    """A function or method, and its location.

    Parameters
    ----------
    owner : module or type
        The module or class that has the attribute.
    attribute : str
        Name of the attribute.
    found : Any
        The stored attribute: a function, or a `staticmethod` or `classmethod` around one.
    own : bool
        Whether the owner itself has the attribute, rather than a base class.
    """

    owner: Any
    attribute: str
    found: Any
    own: bool

    @property
    def function(self) -> Any:
        """The function to call; for a method, its first argument is the object."""
        if isinstance(self.found, (staticmethod, classmethod)):
            return self.found.__func__
        if isinstance(self.found, functools.partialmethod):
            return self.found.__get__(None, self.owner)
        return self.found

    def dressed(self, wrapper: Callable[..., Any]) -> Any:
        """Return `wrapper` in the form to store, so that it is called like the original."""
        if isinstance(self.found, (staticmethod, classmethod)):
            return type(self.found)(wrapper)
        # A function stored in a class receives the object as its first argument; built-in functions
        # and other callables do not.
        if isinstance(self.owner, type) and not hasattr(type(self.found), "__get__"):
            return staticmethod(wrapper)
        return wrapper


def namespace(owner: Any) -> dict[str, Any]:
    """Return the attributes of a module or class without triggering a lazy module."""
    if isinstance(owner, type):
        return cast("dict[str, Any]", vars(owner))
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:  # the "module" is an object with __slots__
        return {}
    return found if isinstance(found, dict) else {}


def _not_ready(module: Any) -> str:
    """Return why a module is not fully executed; empty if it is."""
    if type(module) is _LAZY:  # executed on first attribute access (`importlib.util`)
        return "is loaded when it is first used"
    spec = namespace(module).get("__spec__")
    return "is being imported" if getattr(spec, _MARK, False) else ""


def is_here(name: str) -> bool:
    """Return whether a module is fully imported."""
    module = sys.modules.get(name)
    return module is not None and not _not_ready(module)


def version_of(path: str) -> str:
    """Return the version that an imported library reports; empty if it reports none."""
    module = sys.modules.get(path.partition(".")[0])
    found = namespace(module).get("__version__", "") if module is not None else ""
    return found if isinstance(found, str) else ""


def resolve(path: str) -> Target:
    """Import the modules of a path, and return its target.

    Parameters
    ----------
    path : str
        ``"library.module.function"`` or ``"library.module.Class.method"``.

    Returns
    -------
    Target
        The function or method.

    Raises
    ------
    CapabilityError
        If there is no such name, or its module cannot be imported.
    """
    for name in itertools.accumulate(path.split(".")[:-1], "{}.{}".format):
        try:
            importlib.import_module(name)
        except ImportError as error:
            # For a class the import error says that it is not a module; a missing dependency of a
            # module is a different error.
            if isinstance(error, ModuleNotFoundError) and error.name == name and "." in name:
                break
            raise CapabilityError(f"{path}: {name} cannot be imported: {error}") from error
    return look_up(path)


def look_up(path: str) -> Target:
    """Return the target of a path among imported modules; imports or triggers nothing.

    Parameters
    ----------
    path : str
        See `resolve`.

    Returns
    -------
    Target
        The function or method.

    Raises
    ------
    NotPatchedError
        If there is none; the state says whether an import may provide it.
    """
    *inner, last = path.split(".")
    owner, name = None, ""
    for name in itertools.accumulate(inner, "{}.{}".format):
        module = None if isinstance(owner, type) else sys.modules.get(name)
        owner = _inner(owner, name) if module is None else module
        if module is not None and (reason := _not_ready(module)):
            raise NotPatchedError("waiting", f"{name} {reason}")
    found = _attribute(owner, last)
    if found is _NOTHING:
        on_demand = "__getattr__" in namespace(owner) and not isinstance(owner, type)
        more = " in its namespace; it creates some names on demand" if on_demand else ""
        raise NotPatchedError("missing", f"{name} has no {last!r}{more}")
    return Target(owner, last, found, last in namespace(owner))


def _inner(owner: Any, name: str) -> Any:
    """Return the class or module that is the last component of a name."""
    outer, _, part = name.rpartition(".")
    found = _attribute(owner, part) if outer else _NOTHING
    if isinstance(found, (type, ModuleType)):
        return found
    if found is not _NOTHING:
        raise NotPatchedError("missing", f"{name} is neither a module nor a class")
    if outer and not isinstance(owner, type):
        with suppress(Exception):  # foreign finders may raise anything
            found = importlib.util.find_spec(name)
    if not outer or isinstance(found, ModuleSpec):
        raise NotPatchedError("waiting", f"{name} is not imported yet")
    raise NotPatchedError("missing", f"{outer} has no {part!r}")


def _attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, type):
        return inspect.getattr_static(owner, name, _NOTHING)
    return namespace(owner).get(name, _NOTHING)


# ------------------------------------------------------------------------- noticing imports
#
# A finder in `sys.meta_path` watches for the modules that are waited for. It finds nothing itself:
# it queries the other finders, and makes the module spec that they return report when its module is
# complete. The import system sets a mark on a spec before it executes the module, and clears it
# afterwards, whether or not that succeeded; during this time the spec has a class of ours that
# notices the change. The module, its loader and the import are otherwise unchanged. While nothing
# is waited for, no finder is installed.


class _NoticingSpec(ModuleSpec):
    """The spec of a module that is being imported; becomes an ordinary spec again afterwards."""


def _get_mark(spec: ModuleSpec) -> Any:
    return vars(spec).get(_MARK, False)


def _set_mark(spec: ModuleSpec, value: Any) -> None:
    vars(spec)[_MARK] = value
    if not value:
        imported = vars(spec).pop("_fib_imported", None)
        spec.__class__ = ModuleSpec
        if imported is not None:
            imported()


# The mark is an undeclared plain attribute of the base class.
setattr(_NoticingSpec, _MARK, property(_get_mark, _set_mark))


class ImportHook:
    """Notifies when one of a set of modules has been imported.

    Parameters
    ----------
    imported : callable
        Called after the import, even a failed one, in its thread, which holds the module's lock.
        Exceptions are logged. It may occasionally be called unnecessarily.

    Attributes
    ----------
    names : frozenset of str
        The modules being waited for.
    """

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported
        self.names: frozenset[str] = frozenset()
        self._asking = threading.local()

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait for these modules, and for no others.

        Modules that are being imported right now are reported, too. Complete ones are not.

        Parameters
        ----------
        names : iterable of str
            Full names of modules. If empty, nothing is waited for.
        """
        self.names = frozenset(names)
        there = any(each is self for each in sys.meta_path)
        if there and not self.names:
            sys.meta_path.remove(self)
        elif self.names and not there:
            sys.meta_path.insert(0, self)
        for name in self.names:
            spec = namespace(sys.modules.get(name)).get("__spec__")
            if getattr(spec, _MARK, False):
                self._notice(spec)
                if not getattr(spec, _MARK, False):  # it has just ended, perhaps unnoticed
                    self._told()

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
            Whatever they raise.
        """
        if fullname not in self.names:
            # Some imports cannot be observed: they are reported at the next import of any module.
            if any(is_here(name) for name in self.names):
                self._told()
            return None
        # Another finder of this kind queries all finders as well: prevent endless recursion.
        asking: set[str] = vars(self._asking).setdefault("names", set())
        if fullname in asking:
            return None
        asking.add(fullname)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec: Any = None if find is None else find(fullname, path, target)
                if spec is not None:
                    self._notice(spec)
                    return cast("ModuleSpec", spec)
        finally:
            asking.discard(fullname)
        return None

    def _notice(self, spec: Any) -> None:
        """Report the end of a module's import, unless its spec has an unknown class."""
        if type(spec) is ModuleSpec:
            vars(spec)["_fib_imported"] = self._told
            spec.__class__ = _NoticingSpec

    def _told(self) -> None:
        try:
            self._imported()
        except Exception:  # the import must not fail
            _logger.warning("patching after an import failed", exc_info=True)


# ------------------------------------------------------------------------------ patching

_OWN = ("flashinfer_bench", "fib_")


Place = tuple[Any, str, str]
"""A module, the global name whose value was replaced, and both as ``"module.name"``."""


Swap = tuple[Any, Any, list[Place]]
"""A value (kept alive by this reference), its replacement, and the replaced locations."""


def replace_everywhere(
    swaps: Mapping[int, Swap], leave: Collection[Optional[tuple[int, str]]] = ()
) -> None:
    """Replace values of global names in all imported modules, in one pass.

    Our own modules are skipped, and lazy modules are not triggered.

    Parameters
    ----------
    swaps : dict
        By identity of the value.
    leave : collection of (int, str)
        Locations to leave unchanged, by identity of the module and name.
    """
    seen = set()
    for label, module in list(sys.modules.items()) if swaps else ():
        ours = label.startswith(_OWN[1]) or label.partition(".")[0] == _OWN[0]
        if ours or id(module) in seen:
            continue
        seen.add(id(module))
        for name, value in namespace(module).copy().items():  # other threads may add names
            if id(value) not in swaps or (id(module), name) in leave:
                continue
            _value, new, places = swaps[id(value)]
            try:
                setattr(module, name, new)
            except Exception:  # a module may refuse with any error
                _logger.debug("%s.%s keeps its value", label, name, exc_info=True)
            else:
                places.append((module, name, f"{label}.{name}"))


_REPLACED = "something else has since replaced the wrapper"
_MISMATCH = "version mismatch"


class Order(NamedTuple):
    """A request to patch one target."""

    adapter: str
    """Name of the adapter, for the status."""
    spec: PatchSpec
    make_wrapper: WrapperFactory
    provided_by: str = ""

    def status(self, state: State, reason: str = "", rebound: Sequence[str] = ()) -> PatchStatus:
        """Return its status."""
        path, version = self.spec.path, version_of(self.spec.path)
        about = (tuple(rebound), self.spec.definitions, self.provided_by)
        return PatchStatus(path, self.adapter, state, reason, version, *about)


@dataclass(eq=False)
class _Patch:
    """A wrapper, and all locations where it is installed."""

    order: Order
    target: Target
    original: Any
    wrapper: Any
    stored: Any
    places: list[Place] = field(default_factory=list)
    failure: str = ""

    @property
    def place(self) -> tuple[int, str]:
        return id(self.target.owner), self.target.attribute

    def is_on(self) -> bool:
        target = self.target
        return namespace(target.owner).get(target.attribute, _NOTHING) is self.stored

    def put_on(self) -> None:
        """Install the wrapper; raises what the owner raises."""
        target = self.target
        setattr(target.owner, target.attribute, self.stored)
        if not self.is_on():
            raise AttributeError(f"{target.owner!r} does not keep what is assigned to it")

    def take_off(self) -> None:
        """Restore the original; raises what the owner raises."""
        target = self.target
        if target.own:
            setattr(target.owner, target.attribute, target.found)
        else:
            delattr(target.owner, target.attribute)

    def status(self) -> PatchStatus:
        if self.failure:
            return self.order.status("failed", self.failure)
        labels = [label for _module, _name, label in self.places]
        return self.order.status("patched", "" if self.is_on() else _REPLACED, labels)


class PatchManager:
    """Installs wrappers and removes them again.

    A function is replaced at its path, and wherever another module refers to it by value. Removal
    restores exactly the locations that were changed; a location that has been assigned a different
    value since keeps it and is listed in `kept`.

    Thread-safe. Concurrent calls find either the original or the wrapper.
    """

    def __init__(self) -> None:
        self._patches: dict[str, _Patch] = {}
        # Paths whose originals could not be restored, and why.
        self.kept: dict[str, str] = {}
        self._lock = threading.RLock()

    @property
    def patched(self) -> tuple[str, ...]:
        """The paths that are currently wrapped by this manager."""
        return tuple(self._patches)

    def status(self, path: str) -> Optional[PatchStatus]:
        """Return the current status of a wrapped path; None if it is not wrapped."""
        patch = self._patches.get(path)
        return patch.status() if patch is not None else None

    # --------------------------------------------------------------------------------- installing

    def patch(self, spec: PatchSpec, wrapper_factory: WrapperFactory) -> bool:
        """Import a target's library and wrap the target.

        Parameters
        ----------
        spec : PatchSpec
            Names the target.
        wrapper_factory : callable
            Creates the wrapper: `Adapter.make_wrapper`. Its exceptions propagate, except for
            `CapabilityError`, which means that the target cannot be wrapped.

        Returns
        -------
        bool
            Whether the target is wrapped now: False if the installed library has no such target, or
            one that cannot be wrapped; `patch_all` reports the reason. An existing wrapper is kept.
        """
        order = Order("", spec, wrapper_factory)
        try:
            # Without the lock: another thread may be importing the library and about to patch it.
            if spec.path not in self._patches:
                resolve(spec.path)
            with self._lock:
                if spec.path not in self._patches:
                    self._put_on([self._prepared(order, {})])
                return spec.path in self._patches
        except CapabilityError:
            return False

    def patch_all(self, orders: Iterable[Order]) -> list[PatchStatus]:
        """Wrap the targets whose libraries are imported.

        Nothing is imported or raised: the status of each target says why it is not patched. All
        modules are searched once for all targets together.

        Parameters
        ----------
        orders : iterable of Order
            The targets. A target that is already wrapped keeps its wrapper; if two orders have the
            same path, or the same function at the same location, the first one wins.

        Returns
        -------
        list of PatchStatus
            One per order.
        """
        with self._lock:
            taken = {patch.place: patch.order for patch in self._patches.values()}
            found: list[Union[_Patch, PatchStatus]] = []
            for order in orders:
                try:
                    patch = self._prepared(order, taken)
                except NotPatchedError as error:
                    found.append(order.status(error.state, error.reason))
                except Exception as error:  # raised by the adapter or the library
                    _logger.debug("%s cannot be patched", order.spec.path, exc_info=True)
                    found.append(order.status("failed", told(error)))
                else:
                    found.append(patch)
                    taken[patch.place] = patch.order
            patches = [each for each in found if isinstance(each, _Patch)]
            self._put_on([each for each in patches if each.order.spec.path not in self._patches])
            return [each.status() if isinstance(each, _Patch) else each for each in found]

    def _prepared(self, order: Order, taken: Mapping[tuple[int, str], Order]) -> _Patch:
        """Return a patch that is ready to install, or is installed already."""
        known = self._patches.get(order.spec.path)
        if known is not None and known.order.adapter == order.adapter:
            return known
        target = look_up(order.spec.path)
        original = target.function  # some kinds return a new object each time
        # A patch of this location, or of another that shares the function (copied or inherited).
        worn = next((p.order for p in self._patches.values() if p.wrapper is original), None)
        if (other := taken.get((id(target.owner), target.attribute), worn)) is not None:
            raise NotPatchedError("unwanted", f"adapter '{other.adapter}' already patches it")
        _check(order.spec, target, original)
        wrapper: Any = order.make_wrapper(order.spec, original)
        if not callable(wrapper) or wrapper is original:
            raise TypeError(f"make_wrapper returned {wrapper!r}, which is not a wrapper")
        return _Patch(order, target, original, wrapper, target.dressed(wrapper))

    def _put_on(self, patches: Sequence[_Patch]) -> None:
        """Install wrappers: all targets first, then all other locations."""
        for patch in patches:
            path = patch.order.spec.path
            # Before installing: a child that is forked in between can remove it.
            self._patches[path] = patch
            self.kept.pop(path, None)
            try:
                patch.put_on()
            except Exception as error:  # noqa: BLE001 - a frozen or built-in class, or a custom module type
                del self._patches[path]
                patch.failure = told(error)
        self._rebind([patch for patch in patches if not patch.failure])

    def _rebind(self, patches: Sequence[_Patch]) -> None:
        # If a function has several patches, the first one wins.
        swaps = {id(e.original): (e.original, e.wrapper, e.places) for e in reversed(patches)}
        replace_everywhere(swaps, {_birthplace(each.original) for each in patches})

    # ----------------------------------------------------------------------------------- removing

    def unpatch(self, paths: Collection[str]) -> None:
        """Restore the originals of some paths, in reverse order.

        References to the wrapper that modules have copied since are restored, too. Paths that are
        not wrapped are ignored.
        """
        with self._lock:
            chosen = [self._patches[path] for path in self._patches if path in paths]
            for patch in reversed(chosen):
                self._take_off(patch)
            replace_everywhere({id(e.wrapper): (e.wrapper, e.original, []) for e in chosen})
            # The function may also be the target of another path that stays patched.
            bare = {id(patch.original) for patch in chosen}
            self._rebind([each for each in self._patches.values() if id(each.original) in bare])

    def unpatch_all(self) -> None:
        """Restore the originals of all paths, in reverse order."""
        with self._lock:
            self.unpatch(self.patched)

    def _take_off(self, patch: _Patch) -> None:
        path = patch.order.spec.path
        for module, name, _label in patch.places:  # including modules that have left sys.modules
            with suppress(Exception):
                if namespace(module).get(name) is patch.wrapper:
                    setattr(module, name, patch.original)
        try:
            if patch.is_on():
                patch.take_off()
            else:
                self.kept[path] = f"{_REPLACED}; it is left unchanged"
        except Exception as error:  # noqa: BLE001 - the owner may raise anything
            self.kept[path] = f"it cannot be restored: {told(error)}"
            _logger.warning("%s: %s", path, self.kept[path])
        del self._patches[path]

    def after_fork(self) -> None:
        """Reset in a forked child: another thread may have held the lock."""
        self._lock = threading.RLock()


def _birthplace(function: Any) -> Optional[tuple[int, str]]:
    """Return the defining location of a built-in function.

    Module tables of C code are used by that code, and by compilers that identify operations by
    them.
    """
    module = getattr(function, "__self__", None)
    if isinstance(function, BuiltinFunctionType) and isinstance(module, ModuleType):
        return id(module), function.__name__
    return None


def _check(spec: PatchSpec, target: Target, original: Any) -> None:
    """Raise if a target must not be wrapped."""
    found = target.found
    if isinstance(found, (property, functools.cached_property)):
        raise NotPatchedError("failed", f"{spec.path} is a property: it is read, not called")
    if isinstance(found, type):
        raise NotPatchedError("failed", f"{spec.path} is a class: name one of its methods")
    if not callable(original):
        kind = type(found).__name__
        raise NotPatchedError("failed", f"{spec.path} is a {kind}, which cannot be called")
    try:
        reason = None if spec.expects is None else spec.expects(original)
    except NotPatchedError:
        raise
    except UnroutableError as error:  # independent of the version, and not an error
        raise NotPatchedError("unroutable", error.reason) from None
    except Exception as error:  # noqa: BLE001 - an adapter's own check
        reason = f"its signature cannot be checked: {told(error)}"
    if reason is not None:
        prefix = "" if reason.startswith(_MISMATCH) else f"{_MISMATCH}: "
        raise NotPatchedError("mismatch", prefix + reason)


def told(error: BaseException) -> str:
    """Return an error as one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_manager = PatchManager()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_manager.after_fork)


def get_manager() -> PatchManager:
    """Return the manager shared by the whole process."""
    return _manager
