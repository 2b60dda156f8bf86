"""The catalog of registered records, with one registry for each kind."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, Literal, Optional, TypeVar

import pluggy

from flashinfer_bench._lazy import import_string
from flashinfer_bench.errors import CapabilityError, PluginLoadError
from flashinfer_bench.plugins import hookspecs
from flashinfer_bench.plugins.records import (
    KINDS,
    PASSED_ON,
    Availability,
    Record,
    canonical,
    device_type,
    in_words,
    one_line,
    plural,
    spoken,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.data import Definition
    from flashinfer_bench.plugins.records import BuilderSpec, EvaluatorSpec, OpFamilySpec

_T = TypeVar("_T")
SpecT_co = TypeVar("SpecT_co", bound=Record, covariant=True)
State = Literal["ok", "unavailable", "blocked", "broken"]

CORE_DISTRIBUTION = "flashinfer-bench-core"
CONFLICT_HINT = "Uninstall one of them, or name its plugin in FIB_DISABLE_PLUGINS."
_KIND_OF = {plural(kind): kind for kind in KINDS}


# A probe is code of a plugin: it may raise, call ``sys.exit``, return nonsense, or never return. It
# runs in a daemon thread with a time limit, and delays neither discovery, which runs no probe, nor
# the exit of the process, which does not wait for daemon threads.
class Probe:
    """A probe function, which is run at most once; its result is kept.

    Parameters
    ----------
    path : str
        ``"package.module:function"``.
    timeout_s : float
        Time limit in seconds, including the import of the module.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.failure: Optional[BaseException] = None
        """The exception that the probe raised; None also after a timeout."""
        self.is_late = False
        """Whether the probe exceeded its time limit, so that its result is unknown."""
        self._lock = threading.Lock()
        self._deadline = 0.0
        self._thread: Optional[threading.Thread] = None
        self._answer: Optional[Availability] = None

    def start(self) -> None:
        """Start the probe if it has not been, without waiting for it."""
        with self._lock:
            if self._thread is not None or self._answer is not None:
                return
            self._deadline = time.monotonic() + self.timeout_s
            thread = threading.Thread(target=self._run, name=f"probe {self.path}", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:  # no more threads, or the interpreter is exiting
                self._answer = Availability(False, f"the probe could not be started: {error}")

    def answer(self) -> Availability:
        """Return the result, after waiting until the time limit if necessary; never raises.

        Returns
        -------
        Availability
            The result of the probe, or why there is none.
        """
        self.start()
        if self._thread is not None:  # joined, so that a later fork finds a single thread
            self._thread.join(max(0.0, self._deadline - time.monotonic()))
        with self._lock:
            if self._answer is None:
                self.is_late = True
                self._answer = Availability(
                    False,
                    f"the probe {self.path} did not answer within {self.timeout_s:g} s",
                    "increase FIB_PROBE_TIMEOUT_S",
                )
            return self._answer

    def _run(self) -> None:
        failure: Optional[BaseException] = None
        try:
            found = import_string(self.path)()
            if not isinstance(found, Availability):
                raise TypeError(f"it returned {type(found).__name__}, not Availability")
        except BaseException as error:  # noqa: BLE001 - the plugin's code, in its own thread
            failure = error
            found = Availability(False, f"the probe {self.path} failed: {one_line(error)}")
        with self._lock:
            if self._answer is None:  # else it is too late
                self._answer, self.failure = found, failure


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """A plugin and its state.

    Parameters
    ----------
    name : str
        Name of the entry point; for a module of ``FIB_PLUGINS``, the module; ``core`` for core.
    distribution, version : str
        Its distribution. Empty for a module of ``FIB_PLUGINS``.
    target : str
        The loaded object: ``package.module`` or ``package.module:object``.
    state : str
        ``ok``; ``unavailable``: loaded, but none of its records can be used on this machine;
        ``blocked``: excluded by a setting; ``broken``: has a problem, and some or all of its
        records are left out.
    reason : str
        Why the state is not ``ok``; continues a sentence that starts with the plugin's name.
    traceback : str
        Traceback of the exception, if one was raised.
    records : tuple of (str, str)
        Kind and name of its records.
    load_ms : float
        Time for loading it and calling its hooks, in milliseconds.
    heavy_imports : tuple of str
        Heavy libraries imported while loading it, which plugins should avoid.
    """

    name: str
    distribution: str = ""
    version: str = ""
    target: str = ""
    state: State = "ok"
    reason: str = ""
    traceback: str = ""
    records: tuple[tuple[str, str], ...] = ()
    load_ms: float = 0.0
    heavy_imports: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Distribution and version, or the plugin's name where there is no distribution."""
        return f"{self.distribution} {self.version}".strip() or self.name

    def sentence(self) -> str:
        """Return origin and reason as a sentence: ``Plugin fib-x 0.1 failed to load: …``."""
        return f"Plugin {self.origin} {self.reason or 'is ' + self.state}"


@dataclass(frozen=True)
class Registered(Generic[SpecT_co]):
    """A record together with the plugin that it came from.

    Parameters
    ----------
    spec : Record
        The record.
    distribution, version : str
        The distribution that provides it; both empty for a module of ``FIB_PLUGINS``.
    plugin : str
        Name of the plugin.
    check : Probe, optional
        The record's probe; None if it has none.
    """

    spec: SpecT_co
    distribution: str = ""
    version: str = ""
    plugin: str = ""
    check: Optional[Probe] = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the record."""
        return self.spec.name

    @property
    def label(self) -> str:
        """Kind and name in words: ``key builder 'gqa'``."""
        return f"{spoken(self.spec.kind)} {self.name!r}"

    @property
    def origin(self) -> str:
        """Distribution and version, or the plugin's name where there is no distribution."""
        return f"{self.distribution} {self.version}".strip() or self.plugin

    def availability(self) -> Availability:
        """Return whether the code can be used on this machine; determined once, never raises.

        Returns
        -------
        Availability
            The result of the probe. If the probe raises, returns something else, or takes longer
            than ``FIB_PROBE_TIMEOUT_S``, the record is not available, for that reason.
        """
        return self.check.answer() if self.check is not None else Availability(True)

    def load(self, path: Optional[str] = None) -> Any:
        """Import and return the object that the record's factory names.

        Parameters
        ----------
        path : str, optional
            Another ``"package.module:Name"`` of the record, for kinds that have several.

        Returns
        -------
        Any
            The class or function; it is not called.

        Raises
        ------
        PluginLoadError
            If it cannot be imported, or does not exist.
        """
        path = path or self.spec.factory
        try:
            return import_string(path)
        except PASSED_ON:
            raise
        except BaseException as error:
            raise PluginLoadError(
                f"The {self.label} of {self.origin} cannot be imported from {path}: "
                f"{one_line(error)}",
                hint=f"Run `fib plugins doctor {self.plugin}`.",
            ) from error

    def load_subclass(self, base: type[_T]) -> type[_T]:
        """Import and return the class that the record names, a subclass of `base`.

        Raises
        ------
        PluginLoadError
            If it is not a subclass of `base`, or cannot be imported.
        """
        factory = self.load()
        if isinstance(factory, type) and issubclass(factory, base):
            return factory
        raise PluginLoadError(
            f"{self.spec.kind} {self.name!r} of {self.origin}: {self.spec.factory} is not a "
            f"subclass of {base.__name__}"
        )


@dataclass(frozen=True)
class Conflict:
    """Records of the same kind and name, all of which are refused.

    Parameters
    ----------
    kind, name : str
        Their kind and name.
    claims : tuple of Registered
        The records, sorted by distribution.
    kept : Registered, optional
        The record of core with this name, which cannot be replaced; not among the `claims`.
    """

    kind: str
    name: str
    claims: tuple[Registered[Any], ...]
    kept: Optional[Registered[Any]] = None

    def sentence(self) -> str:
        """Return which plugins claim the name, and which is used."""
        origins = in_words([claim.origin for claim in self.claims])
        what = f"{spoken(self.kind).capitalize()} {self.name!r}"
        return f"{what} is registered by {origins}; {self._outcome()}."

    def reason(self, others: Sequence[str]) -> str:
        """Return the reason for the status of one plugin; `others` are the other origins."""
        what = f"registers {spoken(self.kind)} {self.name!r}"
        if self.kept is None:
            what += f", as does {in_words(others)}" if others else " more than once"
        return f"{what}; {self._outcome()}"

    def _outcome(self) -> str:
        if self.kept is not None:
            return f"refused, because core has a {spoken(self.kind)} of this name"
        return "both are refused" if len(self.claims) == 2 else "all of them are refused"


class Registry(tuple[Registered[SpecT_co], ...]):
    """The records of one kind in the order of selection: by decreasing priority, then by name.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    conflicts : tuple of Conflict
        Names of this kind that are registered more than once.
    plugins : tuple of PluginStatus
        The state of each plugin, for messages about missing records.
    """

    kind: str
    conflicts: tuple[Conflict, ...]
    plugins: tuple[PluginStatus, ...]

    @property
    def names(self) -> list[str]:
        """The names of the records."""
        return [entry.name for entry in self]

    def get(self, name: str) -> Optional[Registered[SpecT_co]]:
        """Return the record with exactly this name, or None."""
        return next((entry for entry in self if entry.spec.name == name), None)

    def find(self, name: str) -> Registered[SpecT_co]:
        """Return the record of that name, whether or not it can be used here.

        Raises
        ------
        CapabilityError
            If there is none. The message lists the available names, and broken or blocked plugins
            that might provide it.
        """
        wanted = name.strip().lower()
        found = self.get(wanted)
        if found is not None:
            return found
        near = get_close_matches(wanted, self.names, n=1)
        advice = f" Did you mean {near[0]!r}?" if near else ""
        claimed = [each for each in self.conflicts if each.name == wanted]
        message = f"No {spoken(self.kind)} {wanted!r}.{advice} {self._available()}"
        raise self.missing(message, wanted, claimed)

    def select(self, wanted: Callable[[Any], bool], subject: str) -> Registered[SpecT_co]:
        """Return the first suitable record that can be used here.

        Parameters
        ----------
        wanted : callable
            Returns whether a record is suitable.
        subject : str
            What it is needed for, to follow the kind in messages: ``for device 'cpu'``.

        Raises
        ------
        CapabilityError
            If there is none; the message says why, and which plugin might provide it.
        """
        candidates = [entry for entry in self if wanted(entry.spec)]
        if not candidates:
            message = f"No {spoken(self.kind)} {subject}. {self._available()}"
            raise self.missing(message, "", self.refused(wanted))
        return self.first_usable(candidates, subject)

    def for_device(self, device: str, name: Optional[str] = None) -> Registered[SpecT_co]:
        """Return the record for a device; for kinds whose records have devices.

        Parameters
        ----------
        device : str
            ``cpu``, ``cuda``, ``cuda:1``, …
        name : str, optional
            Consider only the record with this name.

        Returns
        -------
        Registered
            The first that can be used here.

        Raises
        ------
        CapabilityError
            If there is none, or the named one is unknown, not for the device, or not usable.
        """
        if name is None:
            return self.select(lambda spec: spec.serves(device), f"for device {device!r}")
        named: Registered[Any] = self.find(name)
        kind = device_type(device)
        if not named.spec.serves(device):
            fitting = [each.name for each in self if each.spec.serves(device)]
            raise CapabilityError(
                f"{spoken(self.kind).capitalize()} {named.name!r} is for "
                f"{', '.join(named.spec.devices)}, not for {kind!r}. Available "
                f"{spoken(plural(self.kind))} for {kind!r}: {', '.join(fitting) or 'none'}."
            )
        return self.first_usable([named], repr(named.name))

    def first_usable(
        self, candidates: Sequence[Registered[SpecT_co]], subject: str
    ) -> Registered[SpecT_co]:
        """Return the first of `candidates` that can be used here, or raise `CapabilityError`."""
        for entry in candidates:
            if entry.availability():
                return entry
        parts = [f"No {spoken(self.kind)} {subject} can be used on this machine."]
        for entry in candidates:
            reason = entry.availability().reason.rstrip(".")
            parts.append(f"{entry.name} ({entry.origin}): {reason}.")
        remedies = dict.fromkeys(entry.availability().remedy for entry in candidates)
        raise CapabilityError(" ".join(parts), hint="; ".join(filter(None, remedies)) or None)

    def refused(self, wanted: Callable[[Any], bool]) -> list[Conflict]:
        """Return the conflicts between suitable records."""
        return [each for each in self.conflicts if any(wanted(one.spec) for one in each.claims)]

    def missing(
        self, message: str, wanted: str, conflicts: Sequence[Conflict] = ()
    ) -> CapabilityError:
        """Return the error for a record that was not found, with likely causes and what to do."""
        if conflicts:
            message = " ".join([message, *(each.sentence() for each in conflicts)])
            return CapabilityError(message, hint=CONFLICT_HINT)
        missing = [status for status in self.plugins if status.state in ("broken", "blocked")]
        related = [status for status in missing if wanted and _is_related(status, wanted)]
        suspects = related or [status for status in missing if status.state == "broken"]
        for status in related:
            message += f" {status.sentence().rstrip('.')}."
        if suspects and not related:
            origins = ", ".join(status.origin for status in suspects)
            message += f" Broken plugins that might provide it: {origins}."
        failed = [status.name for status in suspects if status.state == "broken"]
        hint = f"Run `fib plugins list --kind {self.kind}` to see what is installed."
        from flashinfer_bench._providers import install_hint, provider_of

        provider = provider_of(self.kind, wanted) if wanted else None
        if provider is not None:
            message += f" It is provided by {provider}."
            hint = install_hint(provider)
        if failed:
            hint = f"Run `fib plugins doctor{' ' + failed[0] if len(failed) == 1 else ''}`."
        return CapabilityError(message, hint=hint)

    def _available(self) -> str:
        return f"Available {spoken(plural(self.kind))}: {', '.join(self.names) or 'none'}."


def _is_related(status: PluginStatus, wanted: str) -> bool:
    """Return whether `wanted` is a part of the name of the plugin or its distribution."""
    needle = f"-{canonical(wanted)}-"
    names = (status.name, status.distribution, status.target)
    return any(needle in f"-{canonical(name)}-" for name in names)


def new_manager() -> pluggy.PluginManager:
    """Return a manager of the lifecycle hooks, without plugins."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


@dataclass(frozen=True)
class Catalog:
    """All registered records; immutable.

    Each kind has an attribute with its `Registry`, named by the plural of the kind: `builders`,
    `timers`, `key_builders`, `op_families`, …

    Parameters
    ----------
    records : tuple of Registered
        Records of all kinds, in the order of `KINDS`, and of selection within each kind.
    plugins : tuple of PluginStatus
        The state of each plugin after loading, without the results of probes; see `survey`.
    conflicts : tuple of Conflict
        Names that are registered more than once, and are in no registry.
    hook : object, optional
        Calls the lifecycle hooks of all plugins: ``catalog.hook.fib_run_started(run=run)``.
    """

    records: tuple[Registered[Any], ...] = ()
    plugins: tuple[PluginStatus, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    hook: Any = field(default_factory=lambda: new_manager().hook, compare=False, repr=False)

    @classmethod
    def build(cls, registered: Iterable[Registered[Any]]) -> Catalog:
        """Return a catalog of records, without names that are registered more than once.

        Parameters
        ----------
        registered : iterable of Registered
            Records of any kinds, in any order.

        Returns
        -------
        Catalog
            Independent of the order of `registered`.
        """
        claims: dict[tuple[str, str], list[Registered[Any]]] = defaultdict(list)
        for entry in registered:
            claims[entry.spec.kind, entry.name].append(entry)
        used, conflicts = [], []
        for (kind, name), entries in sorted(claims.items()):
            kept = _kept(kind, entries)
            used += [kept] if kept is not None else []
            refused = [entry for entry in entries if entry is not kept]
            if refused:
                refused.sort(key=lambda entry: (entry.origin, entry.plugin))
                conflicts.append(Conflict(kind, name, tuple(refused), kept))
        used.sort(key=_rank)
        return cls(tuple(used), conflicts=tuple(conflicts))

    @classmethod
    def of(
        cls, *records: Record, distribution: str = "", version: str = "", timeout_s: float = 1.0
    ) -> Catalog:
        """Return a catalog of the given records, without discovery.

        Parameters
        ----------
        *records : Record
            The records.
        distribution, version : str
            Their origin.
        timeout_s : float
            Time limit of a probe, in seconds.

        Returns
        -------
        Catalog
            All its records are of a plugin named ``given``.
        """
        probes = [Probe(one.probe, timeout_s) if one.probe else None for one in records]
        given = (distribution, version, "given")
        return cls.build(
            Registered(one, *given, probe) for one, probe in zip(records, probes, strict=True)
        )

    def __getattr__(self, name: str) -> Registry[Any]:
        if name not in _KIND_OF:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        kind = _KIND_OF[name]
        found: Registry[Any] = Registry(one for one in self.records if one.spec.kind == kind)
        found.kind, found.plugins = kind, self.plugins
        found.conflicts = tuple(each for each in self.conflicts if each.kind == kind)
        vars(self)[name] = found  # found there from now on, without this method
        return found

    def entries(self, kind: str) -> Registry[Any]:
        """Return the `Registry` of `kind`.

        Raises
        ------
        ValueError
            If there is no such kind.
        """
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; available kinds: {', '.join(KINDS)}")
        found: Registry[Any] = getattr(self, plural(kind))
        return found

    def find(self, kind: str, name: str) -> Registered[Any]:
        """Return the record of that kind and name, whether or not it can be used here.

        Raises
        ------
        CapabilityError
            If there is none; see `Registry.find`.
        ValueError
            If there is no such kind.
        """
        found: Registered[Any] = self.entries(kind).find(name)
        return found

    def from_plugin(self, status: PluginStatus) -> tuple[Registered[Any], ...]:
        """Return the records of one plugin, of all kinds."""
        key = (status.name, status.distribution)
        return tuple(entry for entry in self if (entry.plugin, entry.distribution) == key)

    def check_all(self, entries: Optional[Iterable[Registered[Any]]] = None) -> None:
        """Run the probes of `entries` (default: all) at the same time; their results are kept."""
        chosen = self.records if entries is None else entries
        probes = [entry.check for entry in chosen if entry.check is not None]
        for probe in probes:  # start all of them before waiting for the first
            probe.start()
        for probe in probes:
            probe.answer()

    def survey(self, plugins: Optional[Sequence[PluginStatus]] = None) -> tuple[PluginStatus, ...]:
        """Run the probes of plugins (default: all), and return their updated states.

        Parameters
        ----------
        plugins : sequence of PluginStatus, optional
            Some of the `plugins` of this catalog.

        Returns
        -------
        tuple of PluginStatus
            The same, with ``unavailable`` for those without a record that can be used here.
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

    def builders_for(
        self, language: str, binding: Optional[str] = None, *, device: Optional[str] = None
    ) -> tuple[Registered[BuilderSpec], ...]:
        """Return the builders for a language, whether or not they can be used here.

        Parameters
        ----------
        language : str
            Language of a solution.
        binding : str, optional
            Its binding.
        device : str, optional
            Device of the solution: ``cpu``, ``cuda``, ``cuda:1``, …; None for any.

        Returns
        -------
        tuple of Registered
            In the order of selection.
        """
        pair = _plain(language), _plain(binding)
        return tuple(
            each for each in self.builders if each.spec.accepts(*pair) and each.spec.serves(device)
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
            Name of the solution, for messages.
        device : str, optional
            Device of the solution: ``cpu``, ``cuda``, ``cuda:1``, …; None for any.

        Returns
        -------
        Registered
            The first that can be used here.

        Raises
        ------
        CapabilityError
            If there is none; the message says why, and which plugin might provide it.
        """
        plain, wanted = _plain(language), _plain(binding)
        anywhere = self.builders_for(language, binding)
        subject = f"for language {plain!r}"
        subject += f" with binding {wanted!r}" if wanted is not None else ""
        subject += f" (solution {solution!r})" if solution is not None else ""
        if not anywhere:
            raise self._no_builder(plain, wanted, subject)
        fitting = [entry for entry in anywhere if entry.spec.serves(device)]
        if fitting:
            return self.builders.first_usable(fitting, subject)
        told = [
            f"{one.name} ({one.origin}) is for {', '.join(one.spec.devices)}." for one in anywhere
        ]
        raise CapabilityError(
            " ".join([f"No builder {subject} supports device {device!r}.", *told]),
            hint=f"choose another device, such as {anywhere[0].spec.devices[0]}",
        )

    def _no_builder(self, language: str, binding: Optional[str], subject: str) -> CapabilityError:
        registry: Registry[BuilderSpec] = self.builders
        self.check_all(registry)
        message = f"No builder {subject}."
        pairs = [pair for entry in registry for pair in entry.spec.handles]
        bindings = sorted({each or "none" for name, each in pairs if name == language})
        if bindings:
            message += f" Available bindings of {language!r}: {', '.join(bindings)}."
        else:
            message += f" No installed plugin builds {language}."
        usable = [entry for entry in registry if entry.availability()]
        languages = sorted({each for entry in usable for each, _ in entry.spec.handles})
        message += f" Available languages: {', '.join(languages) or 'none'}."
        conflicts = registry.refused(lambda spec: spec.accepts(language, binding))
        return registry.missing(message, language, conflicts)

    def family_of(self, op_type: str) -> Optional[Registered[OpFamilySpec]]:
        """Return the first family of an op type that can be used here, or None."""
        families: Registry[OpFamilySpec] = self.op_families
        fitting = (each for each in families if each.spec.accepts(op_type) and each.availability())
        return next(fitting, None)

    def select_evaluator(self, definition: Definition) -> Registered[EvaluatorSpec]:
        """Return the evaluator for a definition.

        Parameters
        ----------
        definition : Definition
            The definition, which is matched as described at `EvaluatorSpec`.

        Returns
        -------
        Registered
            The first matching evaluator that can be used here, or a fallback if none matches. If
            one matches but cannot be used, this is an error, because a fallback could pass a
            solution that it would reject.

        Raises
        ------
        CapabilityError
            If there is none, or the op family is not installed.
        """
        registry: Registry[EvaluatorSpec] = self.evaluators
        family = self.family_of(definition.op_type)
        if family is not None and family.spec.evaluator:
            return registry.find(family.spec.evaluator)
        subject = f"for definition {definition.name!r} (op type {definition.op_type!r})"
        claims = [claim for each in registry.conflicts for claim in each.claims]
        if any(entry.spec.accepts(definition) for entry in (*registry, *claims)):
            return registry.select(lambda spec: spec.accepts(definition), subject)
        from flashinfer_bench._providers import require_family

        require_family(definition.op_type, known=family is not None)
        return registry.select(lambda spec: spec.is_fallback, subject)

    def __iter__(self) -> Iterator[Registered[Any]]:
        return iter(self.records)


def _kept(kind: str, entries: Sequence[Registered[Any]]) -> Optional[Registered[Any]]:
    """Return the record of one name that is used: the only one, or a command of core."""
    if len(entries) == 1:
        return entries[0]
    core = [entry for entry in entries if entry.distribution == CORE_DISTRIBUTION]
    return core[0] if kind == "command" and len(core) == 1 else None


def _rank(entry: Registered[Any]) -> tuple[int, int, str]:
    return (list(KINDS).index(entry.spec.kind), -entry.spec.priority, entry.name)


def _plain(value: Any) -> Any:
    """Return `value`, a string or an enum member, as a string in lower case."""
    return None if value is None else str(getattr(value, "value", value)).strip().lower()
