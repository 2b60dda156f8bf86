"""Adapters: installing their wrappers in place of a library's functions, and removing them."""

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
"""Looks at an original, and returns why this version of it is not supported; None if it is."""
WrapperFactory = Callable[["PatchSpec", Original], Original]

_logger = logging.getLogger(__name__)

Kind = Literal["function", "method"]
"""What a target is: a function of a module, or a method of a class."""

State = Literal[
    "patched", "waiting", "missing", "mismatch", "unroutable", "failed", "off", "unwanted"
]
"""What became of a target.

- ``patched``: calls go through the wrapper.
- ``waiting``: its library is not imported yet; it is patched when that happens.
- ``missing``: the library is imported, or not installed, and has no such function.
- ``mismatch``: the installed version of the library has it in a form that is not supported.
- ``unroutable``: its calls cannot be told in the inputs and outputs of a definition.
- ``failed``: it is there, and could not be patched.
- ``off``: its adapter, or everything, is turned off by the user.
- ``unwanted``: nothing is enabled that its calls could be of.
"""


@dataclass(frozen=True)
class PatchStatus:
    """What became of one target, and why.

    Parameters
    ----------
    path : str
        The target: ``"library.module.function"``.
    adapter : str
        The adapter whose target it is.
    state : str
        See `State`.
    reason : str
        Why it is not patched, or what is peculiar about it; empty if there is nothing to say.
    version : str
        Version of the installed library; empty if there is none, or it does not say.
    rebound : tuple of str
        Where else the original was found and replaced: ``"module.name"``.
    definitions : tuple of str
        Patterns of the definitions that its calls can be of; empty if they are not known.
    provided_by : str
        The distribution that has the adapter, and its version.
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
        """Return the fields, ready for JSON."""
        return asdict(self)


class NotPatchedError(CapabilityError):
    """A target is not patched, now.

    Parameters
    ----------
    state : str
        See `State`; ``"waiting"`` if it may be patched when something is imported.
    reason : str
        Why.
    module : str
        What would have to be imported, if it waits.
    """

    def __init__(self, state: State, reason: str, module: str = "") -> None:
        super().__init__(reason)
        self.state: State = state
        self.reason = reason
        self.module = module


class UnroutableError(Exception):
    """A call is not what a definition describes; it goes to the original.

    Parameters
    ----------
    reason : str
        Why: what such calls are counted as. The same words for the same cause, without values.
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
        What the adapter calls it, which tells `Adapter.make_wrapper` which wrapper is wanted:
        ``"plan"``, ``"run"``.
    ctx_key : str
        What the targets of one adapter share, where a call of one has to be remembered for a later
        call of another.

    Raises
    ------
    ConfigError
        If the path is not dotted, or the kind unknown.
    """

    path: str
    kind: Kind
    name: str
    ctx_key: str = ""
    # Of no account when two are compared: what is the same target may be asked for twice, each time
    # with a function of its own.
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
        """Return whether a call of it can be one of the definitions `names`."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.definitions)


class Adapter(ABC):
    """Knows which functions of a library to wrap, and how.

    It is constructed without arguments, also where the library is not installed, and patches
    nothing itself: that is up to a `PatchManager`.

    A wrapper must not be noticed. While neither apply nor tracing is enabled it calls the original
    once, with the very arguments that it got, and returns the very object that this returns. What
    the original raises goes on to the caller; what goes wrong in the wrapper's own work does not:
    it calls the original instead.
    """

    @abstractmethod
    def targets(self) -> Sequence[PatchSpec]:
        """Return what is to be wrapped: the same each time, and without importing the library."""

    def late_targets(self) -> Sequence[PatchSpec]:
        """Return what is to be wrapped beyond `targets`, once the library is imported.

        For libraries that themselves say what there is to wrap: it may look at the library, which
        `sys.modules` has by now, and must import nothing that this has not imported. Asked anew
        each time that the adapter is installed. Default: nothing.
        """
        return ()

    @abstractmethod
    def make_wrapper(self, spec: PatchSpec, orig: Original) -> Original:
        """Return a function that is put in the place of `orig`.

        Parameters
        ----------
        spec : PatchSpec
            One of `targets`, or of `late_targets`.
        orig : callable
            The function as it was. A method takes its object first.

        Returns
        -------
        callable
            With the name, the documentation and the signature of `orig`: use `functools.wraps`.
        """


_NOTHING = object()
_MARK = "_initializing"
_ANYTHING = (Exception,)

# Has no public name. A library's own modules that make names on demand are another matter.
_LAZY = getattr(importlib.util, "_LazyModule", None)


@dataclass(frozen=True)
class Target:
    """A function or method, and where it is.

    Parameters
    ----------
    owner : module or type
        What it is an attribute of.
    attribute : str
        Name of the attribute.
    found : Any
        The attribute as it is stored: a function, or a `staticmethod` or `classmethod` around one.
    own : bool
        Whether the owner itself has it; otherwise a base class has.
    """

    owner: Any
    attribute: str
    found: Any
    own: bool

    @property
    def function(self) -> Any:
        """What is called; a method takes its object first."""
        if isinstance(self.found, (staticmethod, classmethod)):
            return self.found.__func__
        if isinstance(self.found, functools.partialmethod):
            return self.found.__get__(None, self.owner)
        return self.found

    def dressed(self, wrapper: Callable[..., Any]) -> Any:
        """Return `wrapper` as it has to be stored to be called like what is there now."""
        if isinstance(self.found, (staticmethod, classmethod)):
            return type(self.found)(wrapper)
        # A function of a class is given the object that it is called on; built-in ones, and other
        # objects that can be called, are not.
        if isinstance(self.owner, type) and not hasattr(type(self.found), "__get__"):
            return staticmethod(wrapper)
        return wrapper


def namespace(owner: Any) -> dict[str, Any]:
    """Return the attributes of a module or class, without waking a module that loads lazily."""
    if isinstance(owner, type):
        return cast("dict[str, Any]", vars(owner))
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:  # an object with points stands in for the module
        return {}
    return found if isinstance(found, dict) else {}


def _not_ready(module: Any) -> str:
    """Return why a module has not been run to its end; empty if it has."""
    if type(module) is _LAZY:  # somebody has to look into it first (`importlib.util`)
        return "is loaded when it is first used"
    spec = namespace(module).get("__spec__")
    return "is being imported" if getattr(spec, _MARK, False) else ""


def is_here(name: str) -> bool:
    """Return whether a module is imported, to its end."""
    module = sys.modules.get(name)
    return module is not None and not _not_ready(module)


def version_of(path: str) -> str:
    """Return the version that an imported library gives itself; empty if it gives none."""
    module = sys.modules.get(path.partition(".")[0])
    found = namespace(module).get("__version__", "") if module is not None else ""
    return found if isinstance(found, str) else ""


def resolve(path: str) -> Target:
    """Import what a path leads through, and return what it leads to.

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
        If there is nothing of that name, or its module cannot be imported.
    """
    for name in itertools.accumulate(path.split(".")[:-1], "{}.{}".format):
        try:
            importlib.import_module(name)
        except ImportError as error:
            # Of a class the import says that it is no module; a module that lacks a library is
            # another matter.
            if isinstance(error, ModuleNotFoundError) and error.name == name and "." in name:
                break
            raise CapabilityError(f"{path}: {name} cannot be imported: {error}") from error
    return look_up(path)


def look_up(path: str) -> Target:
    """Return what a path leads to in what is imported already; nothing is imported or woken.

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
        If there is none, and whether it is worth to wait.
    """
    *inner, last = path.split(".")
    owner, name = None, ""
    for name in itertools.accumulate(inner, "{}.{}".format):
        module = None if isinstance(owner, type) else sys.modules.get(name)
        owner = _inner(owner, name) if module is None else module
        if module is not None and (reason := _not_ready(module)):
            raise NotPatchedError("waiting", f"{name} {reason}", name)
    found = _attribute(owner, last)
    if found is _NOTHING:
        on_demand = "__getattr__" in namespace(owner) and not isinstance(owner, type)
        more = " of its own; it makes some names on demand" if on_demand else ""
        raise NotPatchedError("missing", f"{name} has no {last!r}{more}")
    return Target(owner, last, found, last in namespace(owner))


def _inner(owner: Any, name: str) -> Any:
    """Return what a module or class has under the last part of a name: a class, or a module."""
    outer, _, part = name.rpartition(".")
    found = _attribute(owner, part) if outer else _NOTHING
    if isinstance(found, (type, ModuleType)):
        return found
    if found is not _NOTHING:
        raise NotPatchedError("missing", f"{name} is neither a module nor a class")
    if outer and not isinstance(owner, type):
        with suppress(Exception):  # the finders of others may raise what they like
            found = importlib.util.find_spec(name)
    if not outer or isinstance(found, ModuleSpec):
        raise NotPatchedError("waiting", f"{name} is not imported yet", name)
    raise NotPatchedError("missing", f"{outer} has no {part!r}")


def _attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, type):
        return inspect.getattr_static(owner, name, _NOTHING)
    return namespace(owner).get(name, _NOTHING)


# ------------------------------------------------------------------------- noticing imports
#
# A finder in `sys.meta_path` looks out for the modules that are waited for. It finds nothing
# itself: it asks the others, and has the module spec that they found say when its module is
# complete. The import system marks a spec before it runs the module, and takes the mark away
# afterwards, in whatever way that ended; meanwhile the spec is of a class of ours that notices. The
# module, its loader and the import are what they would be without. While nothing is waited for
# there is no finder.


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
            imported()


# The mark is a plain attribute of the base class, which is declared nowhere.
setattr(_NoticingSpec, _MARK, property(_get_mark, _set_mark))


class ImportHook:
    """Tells when one of some modules has been imported.

    Parameters
    ----------
    imported : callable
        Called after the import, also one that failed, in its thread, which holds the lock of the
        module. What it raises is logged. Now and then it is called without need.

    Attributes
    ----------
    names : frozenset of str
        The modules that are waited for.
    """

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported
        self.names: frozenset[str] = frozenset()
        self._asking = threading.local()

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait for these modules, and for no others.

        One that is being imported at this moment is told of, too. One that is complete is not.

        Parameters
        ----------
        names : iterable of str
            Full names of modules. Empty: nothing is waited for.
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
                if not getattr(spec, _MARK, False):  # it has ended just now, and perhaps unnoticed
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
            What they raise.
        """
        if fullname not in self.names:
            # Some come in ways that cannot be noticed: they are told of at the next import of any.
            if any(is_here(name) for name in self.names):
                self._told()
            return None
        # Another such finder asks all finders, too, and must not be asked in turn without end.
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
        """Be told once the import of a module has ended, unless its spec is of an unknown class."""
        if type(spec) is ModuleSpec:
            vars(spec)["_fib_imported"] = self._told
            spec.__class__ = _NoticingSpec

    def _told(self) -> None:
        try:
            self._imported()
        except _ANYTHING:  # the import must not notice
            _logger.warning("patching after an import failed", exc_info=True)


# ------------------------------------------------------------------------------ patching

_OWN = ("flashinfer_bench", "fib_")


Place = tuple[Any, str, str]
"""A module, a global name in it whose value was replaced, and both as ``"module.name"``."""


Swap = tuple[Any, Any, list[Place]]
"""A value, which is thereby kept alive, what is put in its place, and where that was done."""


def replace_everywhere(
    swaps: Mapping[int, Swap], leave: Collection[Optional[tuple[int, str]]] = ()
) -> None:
    """Replace values of global names in all imported modules, in one pass.

    Our own modules are left out, and modules that wake up when they are looked at stay asleep.

    Parameters
    ----------
    swaps : dict
        By the identity of the value.
    leave : collection of (int, str)
        Places, by the identity of the module and the name, that stay as they are.
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
            except _ANYTHING:  # a module may refuse, in any way
                _logger.debug("%s.%s keeps its value", label, name, exc_info=True)
            else:
                places.append((module, name, f"{label}.{name}"))


_REPLACED = "something else has since replaced the wrapper"
_MISMATCH = "version mismatch"


class Order(NamedTuple):
    """One target to be patched."""

    adapter: str
    """Name of the adapter, for the status."""
    spec: PatchSpec
    make_wrapper: WrapperFactory
    provided_by: str = ""

    def status(self, state: State, reason: str = "", rebound: Sequence[str] = ()) -> PatchStatus:
        """Return what became of it."""
        path, version = self.spec.path, version_of(self.spec.path)
        about = (tuple(rebound), self.spec.definitions, self.provided_by)
        return PatchStatus(path, self.adapter, state, reason, version, *about)


@dataclass(eq=False)
class _Patch:
    """A wrapper, and all places that wear it."""

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
        """Store the wrapper; raises what the owner raises."""
        target = self.target
        setattr(target.owner, target.attribute, self.stored)
        if not self.is_on():
            raise AttributeError(f"{target.owner!r} does not keep what is assigned to it")

    def take_off(self) -> None:
        """Make the target what it was; raises what the owner raises."""
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
    """Puts wrappers on, and takes them all off again.

    A function is replaced where its path says, and wherever else a module holds it by value. What
    is taken off again is exactly what was put on: a place that has been given something else
    meanwhile keeps that, and `kept` says so.

    Safe to use from several threads. Calls that run meanwhile find the original, or the wrapper.
    """

    def __init__(self) -> None:
        self._patches: dict[str, _Patch] = {}
        # The paths that could not be given their originals back, and why.
        self.kept: dict[str, str] = {}
        self._lock = threading.RLock()

    @property
    def patched(self) -> tuple[str, ...]:
        """The paths that wear a wrapper of this manager."""
        return tuple(self._patches)

    def status(self, path: str) -> Optional[PatchStatus]:
        """Return how a path is that wears a wrapper, as of now; None if it wears none."""
        patch = self._patches.get(path)
        return patch.status() if patch is not None else None

    # ----------------------------------------------------------------------------- putting on

    def patch(self, spec: PatchSpec, wrapper_factory: WrapperFactory) -> bool:
        """Import a target's library, and put a wrapper on the target.

        Parameters
        ----------
        spec : PatchSpec
            Names the target.
        wrapper_factory : callable
            Makes the wrapper: `Adapter.make_wrapper`. What it raises goes on, but for a
            `CapabilityError`: then it cannot be wrapped.

        Returns
        -------
        bool
            Whether it wears one now: False if the installed library has no such target, or one
            that cannot be wrapped; `patch_all` says why. A target that wears one keeps it.
        """
        order = Order("", spec, wrapper_factory)
        try:
            # Without the lock: another thread may be importing it, and be about to patch it.
            if spec.path not in self._patches:
                resolve(spec.path)
            with self._lock:
                if spec.path not in self._patches:
                    self._put_on([self._prepared(order, {})])
                return spec.path in self._patches
        except CapabilityError:
            return False

    def patch_all(self, orders: Iterable[Order]) -> list[PatchStatus]:
        """Put wrappers on targets whose libraries are imported.

        Nothing is imported, and nothing is raised: the status of each target says why it is not
        patched. All modules are looked through once for all targets together.

        Parameters
        ----------
        orders : iterable of Order
            The targets. One that wears a wrapper already keeps it; of two orders for one path, or
            for one function under two paths of one place, the first counts.

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
                except _ANYTHING as error:  # of the adapter, or of the library
                    _logger.debug("%s cannot be patched", order.spec.path, exc_info=True)
                    found.append(order.status("failed", told(error)))
                else:
                    found.append(patch)
                    taken[patch.place] = patch.order
            patches = [each for each in found if isinstance(each, _Patch)]
            self._put_on([each for each in patches if each.order.spec.path not in self._patches])
            return [each.status() if isinstance(each, _Patch) else each for each in found]

    def _prepared(self, order: Order, taken: Mapping[tuple[int, str], Order]) -> _Patch:
        """Return a patch that only has to be put on, or that is on already."""
        known = self._patches.get(order.spec.path)
        if known is not None and known.order.adapter == order.adapter:
            return known
        target = look_up(order.spec.path)
        original = target.function  # of some kinds a new one each time
        # Of the place itself, or of another one whose function it had by value, or inherits.
        worn = next((p.order for p in self._patches.values() if p.wrapper is original), None)
        if (other := taken.get((id(target.owner), target.attribute), worn)) is not None:
            raise NotPatchedError("unwanted", f"adapter '{other.adapter}' already patches it")
        _check(order.spec, target, original)
        wrapper: Any = order.make_wrapper(order.spec, original)
        if not callable(wrapper) or wrapper is original:
            raise TypeError(f"make_wrapper returned {wrapper!r}, which is not a wrapper")
        return _Patch(order, target, original, wrapper, target.dressed(wrapper))

    def _put_on(self, patches: Sequence[_Patch]) -> None:
        """Put wrappers on, all targets first, then all other places."""
        for patch in patches:
            path = patch.order.spec.path
            # Before it is put on: a child that is forked in between can take it off.
            self._patches[path] = patch
            self.kept.pop(path, None)
            try:
                patch.put_on()
            except _ANYTHING as error:  # a frozen class, a built-in one, a module of its own kind
                del self._patches[path]
                patch.failure = told(error)
        self._rebind([patch for patch in patches if not patch.failure])

    def _rebind(self, patches: Sequence[_Patch]) -> None:
        # Of several patches of one function the first one counts.
        swaps = {id(e.original): (e.original, e.wrapper, e.places) for e in reversed(patches)}
        replace_everywhere(swaps, {_birthplace(each.original) for each in patches})

    # ----------------------------------------------------------------------------- taking off

    def unpatch(self, paths: Collection[str]) -> None:
        """Give some paths their originals back, the last one first.

        Also what modules have taken by value from the wrapped places meanwhile. Paths that wear no
        wrapper are left alone.
        """
        with self._lock:
            chosen = [self._patches[path] for path in self._patches if path in paths]
            for patch in reversed(chosen):
                self._take_off(patch)
            replace_everywhere({id(e.wrapper): (e.wrapper, e.original, []) for e in chosen})
            # The same function may be the target of another path that stays patched.
            bare = {id(patch.original) for patch in chosen}
            self._rebind([each for each in self._patches.values() if id(each.original) in bare])

    def unpatch_all(self) -> None:
        """Give every path its original back, the last one first."""
        with self._lock:
            self.unpatch(self.patched)

    def _take_off(self, patch: _Patch) -> None:
        path = patch.order.spec.path
        for module, name, _label in patch.places:  # also in modules that nobody can find any more
            with suppress(Exception):
                if namespace(module).get(name) is patch.wrapper:
                    setattr(module, name, patch.original)
        try:
            if patch.is_on():
                patch.take_off()
            else:
                self.kept[path] = f"{_REPLACED}; it is left as it is"
        except _ANYTHING as error:
            self.kept[path] = f"it cannot be restored: {told(error)}"
            _logger.warning("%s: %s", path, self.kept[path])
        del self._patches[path]

    def after_fork(self) -> None:
        """Work in a forked child: another thread may have held the lock."""
        self._lock = threading.RLock()


def _birthplace(function: Any) -> Optional[tuple[int, str]]:
    """Return where a built-in function comes from.

    Module tables of C code are for that code, and for compilers that tell operations apart by them.
    """
    module = getattr(function, "__self__", None)
    if isinstance(function, BuiltinFunctionType) and isinstance(module, ModuleType):
        return id(module), function.__name__
    return None


def _check(spec: PatchSpec, target: Target, original: Any) -> None:
    """Raise if a target is not to be wrapped."""
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
    except UnroutableError as error:  # whatever the version: nothing is wrong here
        raise NotPatchedError("unroutable", error.reason) from None
    except _ANYTHING as error:
        reason = f"its signature cannot be checked: {told(error)}"
    if reason is not None:
        prefix = "" if reason.startswith(_MISMATCH) else f"{_MISMATCH}: "
        raise NotPatchedError("mismatch", prefix + reason)


def told(error: BaseException) -> str:
    """Return an error in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_manager = PatchManager()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_manager.after_fork)


def get_manager() -> PatchManager:
    """Return the manager that the whole process shares."""
    return _manager
