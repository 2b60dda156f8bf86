"""Putting wrappers in the place of functions, and the functions back."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from dataclasses import dataclass, field
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.integration.adapter import PatchSpec as PatchSpec  # noqa: TC001 - old place
from flashinfer_bench.integration.canonical import UnroutableError
from flashinfer_bench.integration.rebinding import Place, replace_everywhere, swap
from flashinfer_bench.integration.status import PatchStatus
from flashinfer_bench.integration.targets import NotFoundError as NotFoundError
from flashinfer_bench.integration.targets import Target as Target
from flashinfer_bench.integration.targets import look_up, version_of
from flashinfer_bench.integration.targets import resolve as resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from flashinfer_bench.integration.status import State

    WrapperFactory = Callable[[PatchSpec, Callable[..., Any]], Callable[..., Any]]

logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)
_REPLACED = "something else has been put in the place of the wrapper since"
_MISMATCH = "version mismatch"


class Order(NamedTuple):
    """One target to be patched."""

    adapter: str
    """Name of the adapter, for the status."""
    spec: PatchSpec
    make_wrapper: WrapperFactory


@dataclass
class _Patch:
    """A wrapper, and all places that wear it."""

    order: Order
    target: Target
    original: Any
    wrapper: Any
    stored: Any
    places: list[Place] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.order.spec.path

    def is_on(self) -> bool:
        return self.target.stored() is self.stored

    def status(self) -> PatchStatus:
        reason = "" if self.is_on() else _REPLACED
        return _status(self.order, "patched", reason, tuple(place.label for place in self.places))


class PatchManager:
    """Puts wrappers on, and takes them all off again.

    A function is replaced where its path says, and wherever else a module holds it by value. What
    is taken off again is exactly what was put on: a place that has been given something else
    meanwhile keeps that, and `kept` says so.

    Safe to use from several threads. Calls that run meanwhile find the original, or the wrapper.
    """

    def __init__(self) -> None:
        self._patches: dict[str, _Patch] = {}
        self._kept: dict[str, str] = {}
        # Wrappers that were put on at any time and are still in use somewhere.
        self._originals: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    @property
    def patched(self) -> tuple[str, ...]:
        """The paths that wear a wrapper of this manager."""
        return tuple(self._patches)

    @property
    def kept(self) -> Mapping[str, str]:
        """The paths that could not be given their originals back, and why."""
        return dict(self._kept)

    def adapter_of(self, path: str) -> Optional[str]:
        """Return the adapter whose wrapper a path wears, or None."""
        patch = self._patches.get(path)
        return patch.order.adapter if patch is not None else None

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
            Makes the wrapper: `Adapter.make_wrapper`. What it raises goes on.

        Returns
        -------
        bool
            Whether it wears one now: False if the installed library has no such target, or one
            that cannot be wrapped; `patch_all` says why. A target that wears one keeps it.
        """
        try:
            # Without the lock: another thread may be importing it, and be about to patch it.
            if spec.path not in self._patches:
                resolve(spec.path)
        except CapabilityError:
            return False
        with self._lock:
            if spec.path in self._patches:
                return True
            try:
                target = resolve(spec.path)  # as it is by now
            except CapabilityError:
                return False
            order = Order("", spec, wrapper_factory)
            checked = self._check(order, target)
            if isinstance(checked, PatchStatus):
                return False
            made = self._make(order, target)
            return self._put_on([made])[0].state == "patched"

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
            wanted = list(orders)
            ready: dict[int, _Patch] = {}
            found: list[Optional[PatchStatus]] = []
            taken: dict[Any, Order] = {
                patch.target.place: patch.order for patch in self._patches.values()
            }
            for index, order in enumerate(wanted):
                prepared = self._prepare(order, taken)
                if isinstance(prepared, _Patch):
                    ready[index] = prepared
                    taken[prepared.target.place] = order
                found.append(None if isinstance(prepared, _Patch) else prepared)
            put_on = dict(zip(ready, self._put_on(list(ready.values())), strict=True))
            return [status or put_on[index] for index, status in enumerate(found)]

    def _prepare(
        self, order: Order, taken: Mapping[tuple[int, str], Order]
    ) -> Union[_Patch, PatchStatus]:
        """Return a patch that only has to be put on, or why there is none."""
        known = self._patches.get(order.spec.path)
        if known is not None and known.order.adapter == order.adapter:
            return known.status()
        try:
            target = look_up(order.spec.path)
            if (other := taken.get(target.place)) is not None:
                return _status(order, "unwanted", f"the adapter '{other.adapter}' has it")
            return self._check(order, target) or self._make(order, target)
        except NotFoundError as error:
            return _status(order, error.state, error.reason)
        except _ANYTHING as error:  # of the adapter, or of the library
            logger.debug("%s cannot be patched", order.spec.path, exc_info=True)
            return _status(order, "failed", _told(error))

    def _check(self, order: Order, target: Target) -> Optional[PatchStatus]:
        """Return why a target is not to be wrapped; None if it is."""
        refusal = target.refusal()
        if refusal is not None:
            return _status(order, "failed", f"{order.spec.path} {refusal}")
        if order.spec.expects is None:
            return None
        try:
            reason = order.spec.expects(self._original(target.function))
        except UnroutableError as error:  # whatever the version: nothing is wrong here
            return _status(order, "unroutable", error.reason)
        except _ANYTHING as error:
            reason = f"its signature cannot be judged: {_told(error)}"
        if reason is None:
            return None
        told = reason if reason.startswith(_MISMATCH) else f"{_MISMATCH}: {reason}"
        return _status(order, "mismatch", told)

    def _original(self, function: Any) -> Any:
        """Return what a function was before any wrapper of this manager."""
        before = self._before(function)
        while before is not None:
            function, before = before, self._before(before)
        return function

    def _before(self, function: Any) -> Any:
        try:
            return self._originals.get(function)
        except TypeError:  # cannot be hashed, or referred to weakly
            return None

    def _make(self, order: Order, target: Target) -> _Patch:
        function = target.function  # of some kinds a new one each time
        original = self._original(function)
        wrapper: Any = order.make_wrapper(order.spec, original)
        if not callable(wrapper) or wrapper is original:
            raise TypeError(f"make_wrapper returned {wrapper!r}, which is no wrapper")
        if original is not function:
            target = self._as_before(target, original)
        return _Patch(order, target, original, wrapper, target.dressed(wrapper))

    def _as_before(self, target: Target, original: Any) -> Target:
        """Return a target whose place wears a wrapper of ours, as it was before."""
        for patch in self._patches.values():
            # It is this patch's no more: what is restored there, and when, is up to the new one.
            patch.places = [
                place for place in patch.places if (id(place.module), place.name) != target.place
            ]
        found = type(target.found)(original) if target.found is not target.function else original
        return Target(target.owner, target.attribute, found, target.own)

    def _put_on(self, patches: Sequence[_Patch]) -> list[PatchStatus]:
        """Put wrappers on, all targets first, then all other places; return what came of each."""
        failed: dict[str, PatchStatus] = {}
        for patch in patches:
            self._remember(patch)
            try:
                patch.target.replace(patch.stored)
            except _ANYTHING as error:  # a frozen class, a built-in one, a module of its own kind
                del self._patches[patch.path]
                failed[patch.path] = _status(patch.order, "failed", _told(error))
        self._rebind([patch for patch in patches if patch.path not in failed])
        return [failed[p.path] if p.path in failed else p.status() for p in patches]

    def _remember(self, patch: _Patch) -> None:
        # Before it is put on: a child that is forked in between can take it off.
        self._patches[patch.path] = patch
        self._kept.pop(patch.path, None)
        try:
            self._originals[patch.wrapper] = patch.original
        except TypeError:
            logger.debug("the wrapper of %s cannot be remembered", patch.path)

    def _rebind(self, patches: Sequence[_Patch]) -> None:
        replacements: dict[int, tuple[Any, Any]] = {}
        owners: dict[int, _Patch] = {}
        for patch in patches:
            replacements.setdefault(id(patch.original), (patch.original, patch.wrapper))
            owners.setdefault(id(patch.original), patch)
        born = [_birthplace(patch.original) for patch in patches]
        leave = frozenset(place for place in born if place is not None)
        for identity, places in replace_everywhere(replacements, leave).items():
            owners[identity].places += places

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
            replace_everywhere(
                {id(patch.wrapper): (patch.wrapper, patch.original) for patch in chosen}
            )
            # The same function may be the target of another path that stays patched.
            bare = {id(patch.original) for patch in chosen}
            self._rebind([each for each in self._patches.values() if id(each.original) in bare])

    def unpatch_all(self) -> None:
        """Give every path its original back, the last one first."""
        with self._lock:
            self.unpatch(self.patched)

    def _take_off(self, patch: _Patch) -> None:
        for place in patch.places:  # also in modules that nobody can find any more
            swap(place.module, place.name, patch.wrapper, patch.original)
        try:
            if patch.is_on():
                patch.target.restore()
            else:
                self._kept[patch.path] = f"{_REPLACED}; it is left as it is"
        except _ANYTHING as error:
            self._kept[patch.path] = f"it cannot be restored: {_told(error)}"
            logger.warning("%s: %s", patch.path, self._kept[patch.path])
        del self._patches[patch.path]

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


def _status(
    order: Order, state: State, reason: str = "", rebound: tuple[str, ...] = ()
) -> PatchStatus:
    spec = order.spec
    return PatchStatus(spec.path, order.adapter, state, reason, version_of(spec.library), rebound)


def _told(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_manager: Optional[PatchManager] = None
_manager_lock = threading.Lock()


def get_manager() -> PatchManager:
    """Return the manager that the whole process shares."""
    global _manager
    with _manager_lock:
        if _manager is None:
            _manager = PatchManager()
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_manager.after_fork)
        return _manager
