"""Mapping mode: one chosen solution for each definition, instead of the best recorded ones.

``enable_apply({"rmsnorm_h4096": my_rmsnorm})`` routes every call of that definition to
``my_rmsnorm``: calls of decorated functions, and of the functions that an adapter has wrapped.
Whatever is called differently in the definition and in the function is told apart by
`conventions`; outputs are put where the function would have put them.

Where the definition is known, from a dataset, its dispatcher looks at dtypes, devices, constant
axes and layouts first, as for recorded solutions. Where it is not, the name alone decides.

Nothing is hidden: a solution that cannot be built, raises, or returns something else than it
should, raises in the program. What was not meant for it goes to the original, and is counted.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.apis import Api, apis
from flashinfer_bench.apply.arguments import arguments, resolve
from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.curated import (
    check_takes,
    gather_definitions,
    read_folder,
    read_mapping,
)
from flashinfer_bench.apply.mapped import MappedCalls, Running
from flashinfer_bench.apply.tally import Tally
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.slots import Everything, board, no_fallback, opaque

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import TracebackType

    from flashinfer_bench.apply.apis import ApiRegistry
    from flashinfer_bench.apply.arguments import Named, Positional, Resolver
    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.curated import Candidate, Dataset, Value
    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.slots import Args, Call, Fallback, Kwargs, Slot

    Config = ApplyConfig | ApplyConfigRegistry | None

logger = logging.getLogger(__name__)

_MOST_UNKNOWN = 1024
_NOT_MAPPED = "not in the mapping"

_switching = threading.RLock()


def _renew_lock() -> None:
    global _switching
    _switching = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread of the parent may hold it, and is not in the child
    os.register_at_fork(after_in_child=_renew_lock)


class MappingRuntime:
    """Sends calls to the one solution of each definition, while it is active.

    Parameters
    ----------
    candidates : dict of str to Candidate
        By name of the definition.
    definitions : dict of str to Definition
        Those that are known.
    config : ApplyConfigRegistry, optional
        Settings of the definitions. A mapping is always strict, and compares nothing.
    registry : ApiRegistry, optional
        Tells what is behind the slots of adapters. Default: that of the process.

    Raises
    ------
    ConfigError
        If a candidate cannot be one of its definition.
    """

    def __init__(
        self,
        candidates: dict[str, Candidate],
        definitions: dict[str, Definition],
        config: Config = None,
        registry: Optional[ApiRegistry] = None,
    ) -> None:
        self._candidates = candidates
        self._registry = apis if registry is None else registry
        self._definitions = {**self._given(), **definitions}
        self._config = as_registry(config)
        self._tallies: dict[str, Tally] = {}
        self._running = {name: Running() for name in candidates}
        self._calls: weakref.WeakKeyDictionary[Slot, dict[str, Call]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self.entered = 0  # bodies of `with` that have not ended
        for candidate in candidates.values():
            self._check(candidate)

    def __repr__(self) -> str:
        return f"<MappingRuntime of {len(self._candidates)} definitions>"

    def _given(self) -> dict[str, Definition]:
        """Return the definitions that adapters know."""
        found = {}
        for api in self._registry.routable(set(self._candidates)):
            if api.definition is not None and api.definition.name in self._candidates:
                found[api.definition.name] = api.definition
        return found

    def _check(self, candidate: Candidate) -> None:
        definition = self._definitions.get(candidate.definition)
        if candidate.function is not None:
            if definition is not None:
                check_takes(candidate, definition)
        elif definition is None:
            raise ConfigError(
                f"solution '{candidate.name}' cannot be built: its definition "
                f"'{candidate.definition}' is not known",
                hint="name a dataset with it by dataset= or FIB_DATASET_PATH, or give a callable",
            )

    # ------------------------------------------------------------------------------ activity

    @property
    def is_active(self) -> bool:
        """Whether it has been started, and not stopped."""
        return any(each is self for each in board.active)

    def start(self) -> MappingRuntime:
        """Become the innermost active runtime, in the place of another mapping."""
        with _switching:
            self.stop_others()
            board.push(self)
        return self

    def stop_others(self) -> None:
        """Stop other mappings; one whose body has not ended yet is back when this one stops."""
        for other in board.active:
            if isinstance(other, MappingRuntime) and other is not self and not other.entered:
                other.stop()

    def stop(self) -> None:
        """Be active no more; what no call has asked for is logged, as it may be a mistake."""
        if not board.remove(self):
            return
        # Copies: calls that are running add to them.
        asked = {name for tally in list(self._tallies.values()) for name in list(tally.names)}
        if never := [name for name in self._candidates if name not in asked]:
            logger.warning("apply: there was no call of %s while it was mapped", ", ".join(never))

    @property
    def wrapped(self) -> int:
        """How many decorated functions and adapters' functions there are that it may take."""
        return len(self._registry.routable(set(self._candidates)))

    # --------------------------------------------------------------------------------- calls

    def names(self) -> Collection[str]:
        """Return every name: calls of other definitions are counted, too."""
        return Everything(self._candidates)

    def route(self, name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what takes the calls of a slot; see `slots.Runtime`."""
        candidate = self._candidates.get(name)
        if candidate is None:
            return None if slot is None or slot.name is not None else self._unknown(name, slot)
        if slot is None:
            return self._make(Api(f"apply({name!r})"), candidate)
        with self._lock:
            calls = self._calls.setdefault(slot, {})
            if name not in calls:
                calls[name] = self._make(self._registry.api_of(slot), candidate)
            return calls[name]

    def _make(self, api: Api, candidate: Candidate) -> Call:
        definition = self._definitions.get(candidate.definition)
        config = replace(
            self._config.get(candidate.definition), strict=True, shadow_calls=0, shadow_share=0.0
        )
        running = self._running[candidate.definition]
        return MappedCalls(api, candidate, definition, config, self._tally(api), running).call

    def _tally(self, api: Api) -> Tally:
        return self._tallies.setdefault(api.name, Tally())

    def _unknown(self, name: str, slot: Slot) -> Optional[Call]:
        """Return what counts calls of a definition that is not mapped."""
        tally = self._tally(self._registry.api_of(slot))
        if len(tally.unknown) >= _MOST_UNKNOWN and name not in tally.unknown:
            tally.fallback(_NOT_MAPPED)  # it is asked for again at each call
            return None
        tally.unknown.add(name)

        @opaque
        def untaken(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            tally.fallback(_NOT_MAPPED)
            if fallback is None:
                raise RuntimeError(no_fallback(name, "it is not mapped"))
            return fallback(*args, **(kwargs or {}))

        return untaken

    def dispatch(
        self,
        name: str,
        args: Positional = (),
        kwargs: Named = None,
        fallback: Fallback = None,
    ) -> Any:
        """Answer one call, whose arguments are those of the definition `name`.

        Raises
        ------
        RuntimeError
            If there is nothing to substitute and no fallback.
        """
        given, named, instead = arguments(args, kwargs, fallback)
        call = board.call_of(name) if board.top() is self else self.route(name, None)
        if call is not None:
            return call(given, named, instead)
        if instead is not None:
            return instead(*given, **(named or {}))
        raise RuntimeError(no_fallback(name, f"{self!r} does not have it"))

    def definition(self, name: str) -> Optional[Definition]:
        """Return a definition of the mapping, if it is known."""
        return self._definitions.get(name)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the counters of each API that has been called, by its name.

        Returns
        -------
        dict of str to dict
            ``hit``: calls that a solution answered. ``fallback``: calls that went to the original,
            and ``misses``: why, as a number by reason. ``error``: calls in which a solution could
            not be built, raised, or returned something else than it should; they raised.
        """
        return {name: tally.snapshot() for name, tally in sorted(self._tallies.items())}


class WrappedCount(int):
    """How many functions a mapping may take calls of; and the handle of what was enabled.

    As a context manager it disables the mapping at the end of the body. Called like `apply`, it
    answers one call.

    Attributes
    ----------
    runtime : MappingRuntime
        What was enabled.
    """

    runtime: MappingRuntime

    def __new__(cls, runtime: MappingRuntime, count: Optional[int] = None) -> WrappedCount:
        """Count what `runtime` may take now."""
        made = super().__new__(cls, runtime.wrapped if count is None else count)
        made.runtime = runtime
        return made

    def __enter__(self) -> WrappedCount:
        self.runtime.entered += 1
        if not self.runtime.is_active:
            self.runtime.start()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.runtime.entered -= 1
        if self.runtime.entered <= 0:
            self.runtime.stop()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __call__(
        self,
        name_or_resolver: str | Resolver,
        args: Positional = None,
        kwargs: Named = None,
        fallback: Fallback = None,
        *,
        runtime_kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        """Answer one call, as `apply` does."""
        named = kwargs if runtime_kwargs is None else runtime_kwargs
        given, by_name, instead = arguments(args, named, fallback)
        name = resolve(name_or_resolver, given, by_name, instead)
        if name is None:
            assert instead is not None
            return instead(*given, **(by_name or {}))
        return self.runtime.dispatch(name, given, by_name, instead)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the counters of each API; see `MappingRuntime.stats`."""
        return self.runtime.stats()

    def stop(self) -> None:
        """Disable the mapping."""
        self.runtime.stop()


def enable_mapping(
    mapping: Mapping[str, Value],
    config: Config = None,
    *,
    dataset: Dataset = None,
    registry: Optional[ApiRegistry] = None,
) -> WrappedCount:
    """Route calls to the solutions of a mapping, in the place of one that is active.

    Parameters
    ----------
    mapping : mapping of str to callable, Solution or path
        The one solution of each definition.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings; a mapping is always strict, has no misses by size, and compares nothing.
    dataset : TraceSet, str or Path, optional
        Has definitions; what it lacks is looked for in the dataset of ``FIB_DATASET_PATH``, then
        among those that adapters bring along. A callable may do without.
    registry : ApiRegistry, optional
        Tells what is behind the slots of adapters.

    Returns
    -------
    WrappedCount
        How many functions it may take calls of now. An empty mapping enables nothing.

    Raises
    ------
    ConfigError
        If a key or value is not allowed, a callable does not take the inputs of its definition, or
        the definition of a solution is not known.
    DataError, DatasetNotFoundError
        If a file, or the dataset, cannot be read.
    """
    found = read_mapping(mapping)
    return _enable(found, gather_definitions(found, dataset), config, registry)


def enable_folder(
    folder: Path,
    config: Config = None,
    *,
    dataset: Dataset = None,
    registry: Optional[ApiRegistry] = None,
) -> WrappedCount:
    """Route calls to the solutions of a folder: `enable_mapping` of what `read_folder` finds.

    Definitions in the folder's own ``definitions/`` come before those of the dataset.
    """
    candidates = read_folder(folder)
    return _enable(candidates, gather_definitions(candidates, folder, dataset), config, registry)


def _enable(
    candidates: dict[str, Candidate],
    definitions: dict[str, Definition],
    config: Config,
    registry: Optional[ApiRegistry],
) -> WrappedCount:
    runtime = MappingRuntime(candidates, definitions, config, registry)
    if candidates:
        runtime.start()
    else:
        runtime.stop_others()
    return WrappedCount(runtime)


def stats() -> dict[str, Any]:
    """Return the counters of what takes calls now; empty if nothing is enabled."""
    top: Any = board.top()
    return dict(top.stats()) if hasattr(top, "stats") else {}
