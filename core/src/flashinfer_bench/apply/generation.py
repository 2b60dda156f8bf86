"""One table, put to work: what a runtime uses until it is rebuilt."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.apply.nearest import NearestKeys
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.binding import bind
from flashinfer_bench.integration.canonical import Canonical, reordered
from flashinfer_bench.integration.opaque import opaque

if TYPE_CHECKING:
    from collections.abc import Collection

    from flashinfer_bench.apply.building import Builds
    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.dispatch import Counters, Dispatcher, Stats, Target
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.table import ApplyTable, Choice, DefinitionTable
    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.slots import Call, Slot

logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)


class Generation:
    """The dispatchers of one table, each made when its definition is first called.

    It is never closed: whoever is in a call of it keeps it, and what it built.

    Parameters
    ----------
    table : ApplyTable
        What to substitute.
    config : ApplyConfigRegistry
        How carefully.
    builds : Builds
        Builds the solutions of the table.
    device : str
        Where the tensors of calls are: ``cpu``, or ``cuda:N`` for that GPU and those of its name.
    counters : dict of str to Counters, optional
        Those of the generation before, which go on.
    """

    def __init__(
        self,
        table: ApplyTable,
        config: ApplyConfigRegistry,
        builds: Builds,
        device: str,
        counters: Optional[dict[str, Counters]] = None,
    ) -> None:
        self.table = table
        self.config = config
        self.builds = builds
        self.device = device
        self.counters = {} if counters is None else counters
        self._names = frozenset(
            name for name, each in table.definitions.items() if each.choices or each.best
        )
        self._definitions: dict[str, Definition] = {}
        self._dispatchers: dict[str, Optional[Dispatcher]] = {}
        self._problems: dict[str, str] = {}

    def names(self) -> Collection[str]:
        """Return the definitions for which there is anything to substitute."""
        return self._names

    def dispatcher(self, name: str) -> Optional[Dispatcher]:
        """Return the dispatcher of a definition, or None if there cannot be one.

        The same object for all threads, but for a moment two may be made.
        """
        if name not in self._dispatchers:
            self._dispatchers.setdefault(name, self._make(name) if name in self._names else None)
        return self._dispatchers[name]

    def _make(self, name: str) -> Optional[Dispatcher]:
        try:
            definition = self.table.source.definition(name)
            self._definitions[name] = definition
            return self._make_dispatcher(definition)
        except _ANYTHING as error:  # this one only: others still apply
            self._tell(name, f"{type(error).__name__}: {error}")
            return None

    def _make_dispatcher(self, definition: Definition) -> Dispatcher:
        from flashinfer_bench.apply.dispatch import Counters, Dispatcher
        from flashinfer_bench.apply.key_factory import ApplyKeyFactory

        config = self.config.get(definition.name)
        resolver = TableResolver(
            definition, self.table.definitions[definition.name], self.builds, config
        )
        return Dispatcher(
            definition,
            resolver,
            config,
            key_builder=ApplyKeyFactory.specialize(definition),
            device=self.device,
            stats=self.counters.setdefault(definition.name, Counters()),
        )

    def route(self, name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what takes the calls of a slot; see `slots.Runtime`."""
        dispatcher = self.dispatcher(name)
        if dispatcher is None:
            return None
        call = opaque(dispatcher.call)
        if slot is None:
            return call
        definition, signature = self._definitions[name], slot.signature
        try:
            if isinstance(signature, Canonical):
                return reordered(call, signature, list(definition.inputs))
            return bind(call, definition, signature)
        except ConfigError as error:
            self._tell(f"{name} ({slot.label})", error.message)
            return None

    def _tell(self, what: str, why: str) -> None:
        if what not in self._problems:
            self._problems[what] = why
            logger.warning("apply: calls of %s go to the original: %s", what, why)

    @property
    def problems(self) -> dict[str, str]:
        """Why definitions, decorated functions and solutions are not used, by their names."""
        return {**self._problems, **self.builds.failed}

    def stats(self) -> dict[str, Stats]:
        """Return the counters of each definition that has been called."""
        return {name: each.snapshot() for name, each in sorted(dict(self.counters).items())}

    def build_ahead(self) -> dict[str, Exception]:
        """Build the solutions that win most keys, as many as the settings say.

        Returns
        -------
        dict of str to Exception
            Why each that failed did.
        """
        wanted: Counter[str] = Counter()
        for name in self._names:
            wanted.update(_share(self.table.definitions[name], self.config.get(name)))
        if not wanted:
            return {}
        failures = self.builds.ahead([solution for solution, _ in wanted.most_common()])
        if failures:
            name, error = next(iter(failures.items()))
            logger.warning(
                "apply: %d of %d solutions cannot be built, such as %s: %s",
                *(len(failures), len(wanted), name, error),
            )
        return failures


def _share(table: DefinitionTable, config: ApplyConfig) -> dict[str, int]:
    """Return the solutions of a definition to be built ahead, and how many keys each wins."""
    wins = Counter(choice.solution for choice in table.choices.values())
    if table.best is not None and config.on_miss_policy == "use_def_best":
        wins[table.best.solution] += len(table.choices)
    # Of equals always the same: by name.
    ranked = sorted(wins.items(), key=lambda item: (-item[1], item[0]))
    return dict(ranked[: math.ceil(config.aot_ratio * len(ranked))])


class TableResolver:
    """Finds what is called for a key: by the table, or by the policy for keys not in it.

    Parameters
    ----------
    definition : Definition
        Of the calls.
    table : DefinitionTable
        Who won which key.
    builds : Builds
        Builds the winners.
    config : ApplyConfig
        Names the policy.
    """

    def __init__(
        self,
        definition: Definition,
        table: DefinitionTable,
        builds: Builds,
        config: ApplyConfig,
    ) -> None:
        self._definition = definition
        self._table = table
        self._builds = builds
        self._config = config
        self._nearest: Optional[NearestKeys] = None
        self._targets: dict[str, Target] = {}

    def resolve(self, key: Optional[ApplyKey]) -> Optional[Target]:
        """Return what takes calls with a key, building it if that has not been done.

        Parameters
        ----------
        key : ApplyKey, optional
            None if a call has none: then only the policy ``use_def_best`` has an answer.

        Returns
        -------
        Target or None
            None if there is nothing for the key.

        Raises
        ------
        BuildError
            If the winner cannot be built.
        """
        choice = self.choose(key)
        return None if choice is None else self._target(choice.solution)

    def choose(self, key: Optional[ApplyKey]) -> Optional[Choice]:
        """Return who takes calls with a key; None if nobody does."""
        policy = self._config.on_miss_policy
        found = None if key is None else self._table.lookup(key)
        if found is None and policy == "use_def_best":
            return self._table.lend(key, self._table.best)
        if found is None and key is not None and policy == "nearest":
            near = self._near_keys().find(key, self._config.nearest_ratio)
            return None if near is None else self._table.lend(key, self._table.lookup(near))
        return found

    def _near_keys(self) -> NearestKeys:
        if self._nearest is None:
            self._nearest = NearestKeys(self._table.choices)
        return self._nearest

    def _target(self, solution: str) -> Target:
        from flashinfer_bench.apply.dispatch import Target

        runnable = self._builds.get(solution)
        target = self._targets.get(solution)
        if target is None:
            target = self._targets.setdefault(
                solution, Target.from_runnable(runnable, self._definition, solution)
            )
        return target
