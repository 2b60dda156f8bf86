"""All registered records, typed, sorted, and free of duplicates."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional, TypeVar, cast

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import _fields
from flashinfer_bench.plugins import _messages as messages
from flashinfer_bench.plugins.conflict import Conflict as Conflict
from flashinfer_bench.plugins.probes import Probe, ask_all
from flashinfer_bench.plugins.records import (
    KINDS,
    AdapterSpec,
    BuilderSpec,
    CommandSpec,
    EvaluatorSpec,
    ExecutorSpec,
    KeyBuilderSpec,
    Record,
    TimerSpec,
)
from flashinfer_bench.plugins.registered import Registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.data import Definition
    from flashinfer_bench.plugins.status import PluginStatus

SpecT = TypeVar("SpecT", bound=Record)


@dataclass(frozen=True)
class Catalog:
    """An unchangeable view of what is registered.

    Each kind is a tuple sorted by falling priority, then by name, which is the order of selection.

    Parameters
    ----------
    builders, timers, key_builders, adapters, evaluators, executors, commands : tuple of Registered
        The records of each kind, whether or not they can be used on this machine.
    plugins : tuple of PluginStatus
        What became of each plugin when it was loaded. No probe was asked for this; see `survey`.
    conflicts : tuple of Conflict
        Names that were claimed more than once, and are in none of the tuples above.
    """

    builders: tuple[Registered[BuilderSpec], ...] = ()
    timers: tuple[Registered[TimerSpec], ...] = ()
    key_builders: tuple[Registered[KeyBuilderSpec], ...] = ()
    adapters: tuple[Registered[AdapterSpec], ...] = ()
    evaluators: tuple[Registered[EvaluatorSpec], ...] = ()
    executors: tuple[Registered[ExecutorSpec], ...] = ()
    commands: tuple[Registered[CommandSpec], ...] = ()
    plugins: tuple[PluginStatus, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @classmethod
    def build(
        cls, registered: Iterable[Registered[Any]], plugins: Iterable[PluginStatus] = ()
    ) -> Catalog:
        """Sort `registered` by kind, and set aside every name that is claimed more than once.

        Parameters
        ----------
        registered : iterable of Registered
            Records of any kinds, in any order.
        plugins : iterable of PluginStatus
            What became of the plugins.

        Returns
        -------
        Catalog
            The same for every order of `registered`.
        """
        claims: dict[tuple[str, str], list[Registered[Any]]] = defaultdict(list)
        for entry in registered:
            claims[entry.spec.kind, entry.name].append(entry)
        kinds: dict[str, list[Registered[Any]]] = {kind: [] for kind in KINDS}
        conflicts = []
        for (kind, name), entries in sorted(claims.items()):
            if len(entries) == 1:
                kinds[kind].append(entries[0])
            else:
                entries.sort(key=lambda entry: (entry.origin, entry.plugin))
                conflicts.append(Conflict(kind, name, tuple(entries)))
        columns: dict[str, Any] = {
            f"{kind}s": tuple(sorted(entries, key=_rank)) for kind, entries in kinds.items()
        }
        return cls(**columns, plugins=tuple(plugins), conflicts=tuple(conflicts))

    @classmethod
    def of(
        cls, *records: Record, distribution: str = "", version: str = "", timeout_s: float = 1.0
    ) -> Catalog:
        """Make a catalog of just these records, without any discovery.

        Parameters
        ----------
        *records : Record
            What it shall hold.
        distribution, version : str
            Where they are said to come from.
        timeout_s : float
            Seconds that a probe may take.

        Returns
        -------
        Catalog
            With a single plugin called ``given``.
        """
        entries = [
            Registered(
                record,
                distribution,
                version,
                "given",
                Probe(record.probe, timeout_s) if record.probe else None,
            )
            for record in records
        ]
        return cls.build(entries)

    def entries(self, kind: Optional[str] = None) -> tuple[Registered[Any], ...]:
        """Return the records of `kind`, or of all kinds.

        Parameters
        ----------
        kind : str, optional
            One of `KINDS`.

        Raises
        ------
        ValueError
            If there is no such kind.
        """
        if kind is None:
            return tuple(entry for each in KINDS for entry in self.entries(each))
        if kind not in KINDS:
            raise ValueError(f"there is no kind {kind!r}; there are: {', '.join(KINDS)}")
        return cast("tuple[Registered[Any], ...]", getattr(self, f"{kind}s"))

    def from_plugin(self, status: PluginStatus) -> tuple[Registered[Any], ...]:
        """Return the records, of all kinds, that one plugin contributes."""
        key = (status.name, status.distribution)
        return tuple(entry for entry in self if (entry.plugin, entry.distribution) == key)

    def check_all(self, entries: Optional[Iterable[Registered[Any]]] = None) -> None:
        """Ask the probes of `entries` (default: all), at the same time; their answers are kept."""
        chosen = self.entries() if entries is None else entries
        ask_all(entry.check for entry in chosen if entry.check is not None)

    def survey(self, plugins: Optional[Sequence[PluginStatus]] = None) -> tuple[PluginStatus, ...]:
        """Return what became of `plugins` (default: all), with their probes asked.

        Parameters
        ----------
        plugins : sequence of PluginStatus, optional
            Some of `plugins` of this catalog.

        Returns
        -------
        tuple of PluginStatus
            The same, with ``unavailable`` for those of which no record can be used here.
        """
        chosen = self.plugins if plugins is None else plugins
        self.check_all([entry for status in chosen for entry in self.from_plugin(status)])
        return tuple(self._probed(status) for status in chosen)

    def _probed(self, status: PluginStatus) -> PluginStatus:
        mine = self.from_plugin(status)
        if status.state != "ok" or not mine or any(entry.availability() for entry in mine):
            return status
        reasons = "; ".join(dict.fromkeys(entry.availability().reason for entry in mine))
        return replace(status, state="unavailable", reason=f"cannot be used here: {reasons}")

    def find(self, kind: str, name: str) -> Registered[Any]:
        """Return the record of that kind and name, whether or not it can be used here.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        name : str
            Name of the record.

        Returns
        -------
        Registered
            The record.

        Raises
        ------
        CapabilityError
            If there is none. The message names what there is, and the plugins that might have
            provided it but are broken or blocked.
        ValueError
            If there is no such kind.
        """
        wanted = name.strip().lower()
        for entry in self.entries(kind):
            if entry.name == wanted:
                return entry
        for conflict in self.conflicts:
            if (conflict.kind, conflict.name) == (kind, wanted):
                raise CapabilityError(conflict.sentence(), hint=messages.CONFLICT_HINT)
        raise messages.not_found(self, kind, wanted)

    def builders_for(
        self, language: str, binding: Optional[str] = None, *, device: Optional[str] = None
    ) -> tuple[Registered[BuilderSpec], ...]:
        """Return the builders that are meant for a language, whether or not they can be used here.

        Parameters
        ----------
        language : str
            Language of a solution.
        binding : str, optional
            Its binding.
        device : str, optional
            Where the solution shall work: ``cpu``, ``cuda``, ``cuda:1``, …; None for anywhere.

        Returns
        -------
        tuple of Registered
            In the order of selection.
        """
        language, binding = _plain(language), _plain(binding) if binding is not None else None
        return tuple(
            entry
            for entry in self.builders
            if entry.spec.accepts(language, binding) and entry.spec.serves(device)
        )

    def select_builder(
        self,
        language: str,
        binding: Optional[str] = None,
        *,
        solution: Optional[str] = None,
        device: Optional[str] = None,
    ) -> Registered[BuilderSpec]:
        """Return the builder for a language.

        Parameters
        ----------
        language : str
            Language of the solution.
        binding : str, optional
            Its binding.
        solution : str, optional
            Name of the solution, for the message.
        device : str, optional
            Where the solution shall work: ``cpu``, ``cuda``, ``cuda:1``, …; None for anywhere.

        Returns
        -------
        Registered
            The first that can be used here.

        Raises
        ------
        CapabilityError
            If there is none; the message says why, and which plugin might have provided it.
        """
        candidates = self.builders_for(language, binding, device=device)
        for entry in candidates:
            if entry.availability():
                return entry
        language, binding = _plain(language), _plain(binding) if binding is not None else None
        anywhere = self.builders_for(language, binding)
        if not anywhere:
            conflicts = self._refused("builder", lambda spec: spec.accepts(language, binding))
            raise messages.no_builder(self, language, binding, solution, conflicts)
        subject = messages.builder_subject(language, binding, solution)
        elsewhere = [entry for entry in anywhere if entry not in candidates]
        raise messages.no_usable_builder(subject, candidates, elsewhere, device)

    def select_timer(self, device: str, name: Optional[str] = None) -> Registered[TimerSpec]:
        """Return the timer for a device.

        Parameters
        ----------
        device : str
            ``cpu``, ``cuda``, ``cuda:1``, …
        name : str, optional
            Take this one, or none.

        Returns
        -------
        Registered
            The first that can be used here.

        Raises
        ------
        CapabilityError
            If there is none, or the named one is unknown, is not for the device, or cannot be used.
        """
        return cast("Registered[TimerSpec]", self._for_device("timer", device, name))

    def select_executor(self, device: str, name: Optional[str] = None) -> Registered[ExecutorSpec]:
        """Return the executor for a device; like `select_timer`."""
        return cast("Registered[ExecutorSpec]", self._for_device("executor", device, name))

    def _for_device(self, kind: str, device: str, name: Optional[str]) -> Registered[Any]:
        device_type = _fields.device_type(device)
        if name is not None:
            named = self.find(kind, name)
            if device_type not in named.spec.devices:
                raise messages.wrong_device(self, named, device_type)
            return _first_usable(kind, [named], repr(named.name))
        return self._select(
            kind, lambda spec: device_type in spec.devices, f"for device {device!r}"
        )

    def select_evaluator(self, definition: Definition) -> Registered[EvaluatorSpec]:
        """Return the evaluator for a definition.

        Parameters
        ----------
        definition : Definition
            What it is decides; see `EvaluatorSpec`.

        Returns
        -------
        Registered
            Of the evaluators that are meant for it, the first that can be used here. A fallback
            only if none is meant for it: one that is meant for it but cannot be used is an error,
            because a fallback could pass what it would refuse.

        Raises
        ------
        CapabilityError
            If there is none.
        """
        subject = f"for definition {definition.name!r} (op type {definition.op_type!r})"
        if any(spec.accepts(definition) for spec in self._specs("evaluator")):
            return self._select("evaluator", lambda spec: spec.accepts(definition), subject)
        return self._select("evaluator", lambda spec: spec.is_fallback, subject)

    def _select(self, kind: str, wanted: Callable[[Any], bool], subject: str) -> Registered[Any]:
        candidates = [entry for entry in self.entries(kind) if wanted(entry.spec)]
        if not candidates:
            raise messages.nothing_for(self, kind, subject, self._refused(kind, wanted))
        return _first_usable(kind, candidates, subject)

    def _refused(self, kind: str, wanted: Callable[[Any], bool]) -> list[Conflict]:
        """Return the conflicts without which something would have been found."""
        of_kind = [conflict for conflict in self.conflicts if conflict.kind == kind]
        return [each for each in of_kind if any(wanted(claim.spec) for claim in each.claims)]

    def _specs(self, kind: str) -> Iterator[Any]:
        """Yield the records of `kind`, those in a conflict included."""
        yield from (entry.spec for entry in self.entries(kind))
        for conflict in self.conflicts:
            if conflict.kind == kind:
                yield from (claim.spec for claim in conflict.claims)

    def __iter__(self) -> Iterator[Registered[Any]]:
        return iter(self.entries())


def _first_usable(
    kind: str, candidates: Sequence[Registered[SpecT]], subject: str
) -> Registered[SpecT]:
    for entry in candidates:
        if entry.availability():
            return entry
    raise messages.none_usable(kind, subject, candidates)


def _rank(entry: Registered[Any]) -> tuple[int, str]:
    return (-entry.spec.priority, entry.name)


def _plain(value: str) -> str:
    """Return `value`, which may be an enum member, as the string that records hold."""
    return str(getattr(value, "value", value)).strip().lower()
