"""What is registered: one registry for each kind of record, and the catalog of all of them."""

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


# A probe is code of a plugin: it may raise, call ``sys.exit``, answer nonsense, or never return. It
# runs in a daemon thread with a time limit, so it can delay neither discovery, which runs no probe,
# nor the end of the process, which waits for no daemon thread.
class Probe:
    """One probe function, run at most once; its first answer stays.

    Parameters
    ----------
    path : str
        ``"package.module:function"``.
    timeout_s : float
        Seconds, import of the module included, after which the answer is no.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.failure: Optional[BaseException] = None
        """What the probe raised, if it has been asked and did; being too slow is no failure."""
        self.is_late = False
        """Whether it took too long to answer: then nobody knows what it would have said."""
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
            except RuntimeError as error:  # no thread left, or the interpreter is ending
                self._answer = Availability(False, f"the probe could not be started: {error}")

    def answer(self) -> Availability:
        """Return the answer, waiting for it until the time limit; never raises.

        Returns
        -------
        Availability
            What the probe said, or why it could not be asked.
        """
        self.start()
        if self._thread is not None:  # joined, so that a process that forks next has one thread
            self._thread.join(max(0.0, self._deadline - time.monotonic()))
        with self._lock:
            if self._answer is None:
                self.is_late = True
                self._answer = Availability(
                    False,
                    f"the probe {self.path} did not answer within {self.timeout_s:g} s",
                    "FIB_PROBE_TIMEOUT_S sets the limit",
                )
            return self._answer

    def _run(self) -> None:
        failure: Optional[BaseException] = None
        try:
            found = import_string(self.path)()
            if not isinstance(found, Availability):
                raise TypeError(f"it returned {type(found).__name__}, not Availability")
        except BaseException as error:  # noqa: BLE001 - the plugin's code, in a thread of its own
            failure = error
            found = Availability(False, f"the probe {self.path} failed: {one_line(error)}")
        with self._lock:
            if self._answer is None:  # else it is too late: an answer does not change
                self._answer, self.failure = found, failure


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """One plugin, and what became of it.

    Parameters
    ----------
    name : str
        Name of the entry point; for a module of ``FIB_PLUGINS``, the module; ``core`` for core.
    distribution, version : str
        What it was installed with. Empty for a module of ``FIB_PLUGINS``.
    target : str
        What was loaded: ``package.module`` or ``package.module:object``.
    state : str
        ``ok``; ``unavailable``: it loaded, but no record of it can be used on this machine;
        ``blocked``: the user asked not to load it; ``broken``: something about it is wrong, and
        some or all of its records are left out.
    reason : str
        Why the state is not ``ok``, so that it reads on after the plugin's name.
    traceback : str
        Where it raised, if it did.
    records : tuple of (str, str)
        Kind and name of the records that it contributes.
    load_ms : float
        Milliseconds that loading it and calling its hooks took.
    heavy_imports : tuple of str
        Heavy libraries that loading it imported, which no plugin should.
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
        Runs the record's probe; None when it has none.
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
        """Kind and name, as one says them: ``key builder 'gqa'``."""
        return f"{spoken(self.spec.kind)} {self.name!r}"

    @property
    def origin(self) -> str:
        """Distribution and version, or the plugin's name where there is no distribution."""
        return f"{self.distribution} {self.version}".strip() or self.plugin

    def availability(self) -> Availability:
        """Return whether the code can be used on this machine; asked once, never raises.

        Returns
        -------
        Availability
            The probe's answer. A probe that raises, answers something else, or takes longer than
            ``FIB_PROBE_TIMEOUT_S`` counts as a no that says so.
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
            If it cannot be imported, or is not there.
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
        """Import and return what the record names, which has to be a subclass of `base`.

        Raises
        ------
        PluginLoadError
            If it is not, or cannot be imported.
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
    """Records of one kind and name, all of them refused.

    Parameters
    ----------
    kind, name : str
        What they all claim.
    claims : tuple of Registered
        The records, by the distributions that they are from.
    kept : Registered, optional
        A record of core that has this name and cannot be replaced; not among the `claims`.
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
        """Return the reason for which a claimant is broken; `others` are the other origins."""
        what = f"registers {spoken(self.kind)} {self.name!r}"
        if self.kept is None:
            what += f", as does {in_words(others)}" if others else " more than once"
        return f"{what}; {self._outcome()}"

    def _outcome(self) -> str:
        if self.kept is not None:
            return f"refused, because core has a {spoken(self.kind)} of this name"
        return "both are refused" if len(self.claims) == 2 else "all of them are refused"


class Registry(tuple[Registered[SpecT_co], ...]):
    """The records of one kind in the order of selection: by falling priority, then by name.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    conflicts : tuple of Conflict
        Names of this kind that were claimed more than once.
    plugins : tuple of PluginStatus
        What became of each plugin, for messages about records that are not there.
    """

    kind: str
    conflicts: tuple[Conflict, ...]
    plugins: tuple[PluginStatus, ...]

    @property
    def names(self) -> list[str]:
        """The names of the records."""
        return [entry.name for entry in self]

    def get(self, name: str) -> Optional[Registered[SpecT_co]]:
        """Return the record of exactly that name, or None."""
        return next((entry for entry in self if entry.spec.name == name), None)

    def find(self, name: str) -> Registered[SpecT_co]:
        """Return the record of that name, whether or not it can be used here.

        Raises
        ------
        CapabilityError
            If there is none. The message names what there is, and the plugins that might have
            provided it but are broken or blocked.
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
        """Return the first record that is `wanted` and can be used here.

        Parameters
        ----------
        wanted : callable
            Says of a record whether it would do.
        subject : str
            What it is needed for, as it reads on after the kind: ``for device 'cpu'``.

        Raises
        ------
        CapabilityError
            If there is none; the message says why, and which plugin might have provided it.
        """
        candidates = [entry for entry in self if wanted(entry.spec)]
        if not candidates:
            message = f"No {spoken(self.kind)} {subject}. {self._available()}"
            raise self.missing(message, "", self.refused(wanted))
        return self.first_usable(candidates, subject)

    def for_device(self, device: str, name: Optional[str] = None) -> Registered[SpecT_co]:
        """Return the record for a device; for kinds that say which devices they are for.

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
        """Return the conflicts without which something `wanted` would have been found."""
        return [each for each in self.conflicts if any(wanted(one.spec) for one in each.claims)]

    def missing(
        self, message: str, wanted: str, conflicts: Sequence[Conflict] = ()
    ) -> CapabilityError:
        """Make an error that says whose fault it may be that nothing was found, and what to do."""
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
            message += f" Broken plugins, which might have provided it: {origins}."
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
    """Return whether `wanted` is a part of the plugin's or its distribution's name."""
    needle = f"-{canonical(wanted)}-"
    names = (status.name, status.distribution, status.target)
    return any(needle in f"-{canonical(name)}-" for name in names)


def _no_hooks() -> Any:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager.hook


@dataclass(frozen=True)
class Catalog:
    """An unchangeable view of what is registered.

    The records of each kind are an attribute, named by the plural of the kind: `builders`,
    `timers`, `key_builders`, `op_families`, … Each is a `Registry`.

    Parameters
    ----------
    records : tuple of Registered
        Those of all kinds, in the order of `KINDS`, and of selection within each kind.
    plugins : tuple of PluginStatus
        What became of each plugin when it was loaded. No probe was asked for this; see `survey`.
    conflicts : tuple of Conflict
        Names that were claimed more than once, and are in no registry.
    hook : object, optional
        Calls the lifecycle hooks of all plugins: ``catalog.hook.fib_run_started(run=run)``.
    """

    records: tuple[Registered[Any], ...] = ()
    plugins: tuple[PluginStatus, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    hook: Any = field(default_factory=_no_hooks, compare=False, repr=False)

    @classmethod
    def build(
        cls, registered: Iterable[Registered[Any]], plugins: Iterable[PluginStatus] = ()
    ) -> Catalog:
        """Sort `registered`, and set aside every name that is claimed more than once.

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
        used, conflicts = [], []
        for (kind, name), entries in sorted(claims.items()):
            kept = _kept(kind, entries)
            used += [kept] if kept is not None else []
            refused = [entry for entry in entries if entry is not kept]
            if refused:
                refused.sort(key=lambda entry: (entry.origin, entry.plugin))
                conflicts.append(Conflict(kind, name, tuple(refused), kept))
        used.sort(key=_rank)
        return cls(tuple(used), tuple(plugins), tuple(conflicts))

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
        vars(self)[name] = found  # where it is looked for first from now on
        return found

    def entries(self, kind: str) -> Registry[Any]:
        """Return the `Registry` of `kind`.

        Raises
        ------
        ValueError
            If there is no such kind.
        """
        if kind not in KINDS:
            raise ValueError(f"there is no kind {kind!r}; available kinds: {', '.join(KINDS)}")
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
        """Return the records, of all kinds, that one plugin contributes."""
        key = (status.name, status.distribution)
        return tuple(entry for entry in self if (entry.plugin, entry.distribution) == key)

    def check_all(self, entries: Optional[Iterable[Registered[Any]]] = None) -> None:
        """Ask the probes of `entries` (default: all), at the same time; their answers are kept."""
        chosen = self.records if entries is None else entries
        probes = [entry.check for entry in chosen if entry.check is not None]
        for probe in probes:  # all of them before the first answer is waited for
            probe.start()
        for probe in probes:
            probe.answer()

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
            " ".join([f"No builder {subject} is for device {device!r}.", *told]),
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
            message += f" A plugin that builds {language} is missing."
        usable = [entry for entry in registry if entry.availability()]
        languages = sorted({each for entry in usable for each, _ in entry.spec.handles})
        message += f" Available: {', '.join(languages) or 'none'}."
        conflicts = registry.refused(lambda spec: spec.accepts(language, binding))
        return registry.missing(message, language, conflicts)

    def family_of(self, op_type: str) -> Optional[Registered[OpFamilySpec]]:
        """Return the family of an op type that goes first, of those that can be used here."""
        families: Registry[OpFamilySpec] = self.op_families
        fitting = (each for each in families if each.spec.accepts(op_type) and each.availability())
        return next(fitting, None)

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
            If there is none, or the op type needs a family that is not installed.
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
    """Return which of the records of one name is used: the only one, or a command of core."""
    if len(entries) == 1:
        return entries[0]
    core = [entry for entry in entries if entry.distribution == CORE_DISTRIBUTION]
    return core[0] if kind == "command" and len(core) == 1 else None


def _rank(entry: Registered[Any]) -> tuple[int, int, str]:
    return (list(KINDS).index(entry.spec.kind), -entry.spec.priority, entry.name)


def _plain(value: Any) -> Any:
    """Return `value`, which may be an enum member, as the string that records hold."""
    return None if value is None else str(getattr(value, "value", value)).strip().lower()
