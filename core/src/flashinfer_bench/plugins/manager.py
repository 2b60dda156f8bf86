"""Discovery of installed plugins, with one plugin manager for all of them.

An error affects only one plugin, and no more of it than necessary. A hook that fails registers
nothing at all.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import env, errors
from flashinfer_bench._lazy import import_string
from flashinfer_bench._version import __version__
from flashinfer_bench.plugins import hookspecs, registry
from flashinfer_bench.plugins.records import (
    KINDS,
    PASSED_ON,
    Record,
    canonical,
    full_traceback,
    hook_of,
    one_line,
)
from flashinfer_bench.plugins.registry import Catalog, PluginStatus, Probe, Registered

if TYPE_CHECKING:
    import pluggy

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "flashinfer_bench.plugins"
CORE = "core"

RECORDS = {hook_of(kind): spec for kind, spec in KINDS.items()}
"""Record type of each registration hook."""

HOOKS = (*RECORDS, *(name for name in vars(hookspecs) if name.startswith("fib_")))

MAX_RECORDS = 1000
"""Maximum number of records that one hook may return, in case of an endless generator."""

HEAVY = ("torch", "numpy", "triton", "tvm_ffi", "flashinfer", "jax", "cupy", "tilelang")
"""Libraries that plugins should not import at load time, because it takes long."""

_FUNCTIONS = (FunctionType, MethodType, staticmethod, classmethod)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How plugins are discovered.

    Parameters
    ----------
    no_plugins : bool
        Load no installed plugin. The `modules` are still loaded, so that both together give an
        exact set.
    disabled : tuple of str
        Names of plugins, or of their distributions, that are not loaded.
    modules : tuple of str
        Modules (``package.module``, or ``package.module:object``) that are loaded as plugins
        without being installed as such.
    strict : bool
        Raise for a broken plugin, instead of warning.
    probe_timeout_s : float
        Time limit of a probe, in seconds.
    """

    no_plugins: bool = False
    disabled: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    strict: bool = False
    probe_timeout_s: float = 1.0

    @classmethod
    def from_env(cls) -> Settings:
        """Read the ``FIB_*`` variables.

        Raises
        ------
        ConfigError
            If one of them has a value that is not allowed.
        """
        try:
            return cls(
                no_plugins=env.no_plugins(),
                disabled=env.disabled_plugins(),
                modules=env.plugin_modules(),
                strict=env.strict_plugins(),
                probe_timeout_s=env.probe_timeout_s(),
            )
        except ValueError as error:
            raise errors.ConfigError(str(error)) from error

    def why_blocked(self, plugin: PluginStatus) -> Optional[str]:
        """Return why a plugin is not loaded, or None if it is."""
        disabled = {canonical(entry) for entry in self.disabled}
        if disabled & {canonical(name) for name in (plugin.name, plugin.distribution) if name}:
            return "is disabled by FIB_DISABLE_PLUGINS"
        if self.no_plugins and plugin.target not in self.modules:
            return "is not loaded because FIB_NO_PLUGINS is set"
        return None


# ------------------------------------------------------------------------------ finding plugins


def sources(settings: Settings) -> Iterator[PluginStatus]:
    """Yield core, then installed plugins by (distribution, name), then the modules of `settings`.

    A module of `settings` that is also installed as a plugin is yielded once.
    """
    yield PluginStatus(
        name=CORE,
        distribution=registry.CORE_DISTRIBUTION,
        version=__version__,
        target="flashinfer_bench.plugins.builtin",
    )
    rest = dict.fromkeys(settings.modules)
    for source in installed_sources():
        rest.pop(source.target, None)
        yield source
    for target in rest:
        yield PluginStatus(name=target, target=target)


def installed_sources() -> list[PluginStatus]:
    """Return the plugins of all installed distributions, sorted by (distribution, name)."""
    from importlib.metadata import distributions

    found: dict[str, list[PluginStatus]] = {}
    for one in distributions():
        try:
            # Searching the text first avoids parsing the entry points of all distributions.
            if ENTRY_POINT_GROUP not in (one.read_text("entry_points.txt") or ""):
                continue
            name, version = str(one.name or "unknown"), str(one.version or "")
            plugins = [
                PluginStatus(
                    name=point.name, distribution=name, version=version, target=point.value
                )
                for point in one.entry_points.select(group=ENTRY_POINT_GROUP)
            ]
        except Exception as error:  # noqa: BLE001 - metadata may be damaged
            # The path is always known, but not public.
            place = getattr(one, "_path", "a distribution")
            logger.warning("The entry points of %s cannot be read: %s", place, error)
            continue
        found.setdefault(canonical(name), plugins)  # the first on sys.path is imported
    flat = [source for plugins in found.values() for source in plugins]
    return sorted(flat, key=lambda source: (canonical(source.distribution), source.name))


# ----------------------------------------------------------------------------- loading a plugin


class _Refused(errors.PluginLoadError):
    """A check of this module has rejected the plugin."""


class Plugin:
    """A plugin, and the state of loading it.

    The plugin manager calls its attributes that are named after lifecycle hooks: the functions of
    the plugin, wrapped to catch exceptions.

    Parameters
    ----------
    status : PluginStatus
        Its origin and state.
    strict : bool
        Whether exceptions of lifecycle hooks are passed on to the caller.
    """

    def __init__(self, status: PluginStatus, *, strict: bool = False) -> None:
        self.status = status
        self.records: list[Record] = []
        self.errors: list[BaseException] = []
        self._strict = strict
        self._warned: set[str] = set()

    def fail(self, reason: str, error: BaseException, *, traceback: str = "") -> None:
        """Add a problem; the `reason` continues a sentence that starts with the plugin's name."""
        self.errors.append(error)
        known = self.status
        self.status = dataclasses.replace(
            known,
            state="broken",
            reason="; ".join(filter(None, (known.reason, reason))),
            traceback="\n".join(filter(None, (known.traceback, traceback))),
        )

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Catch what the plugin's code in the block raises, and add it as a problem."""
        try:
            yield
        except PASSED_ON:
            raise
        except _Refused as error:
            self.fail(str(error), error)
        except BaseException as error:  # noqa: BLE001 - the plugin's code
            self.fail(f"{what}: {one_line(error)}", error, traceback=full_traceback(error))

    def join(self, manager: pluggy.PluginManager) -> None:
        """Import the plugin, register its lifecycle hooks and collect its records."""
        loaded, started = set(sys.modules), time.perf_counter()
        hooks: dict[str, Callable[..., Any]] = {}
        with self._noting("failed to load"):
            target = self.status.target
            hooks = hooks_of(
                import_string(target) if ":" in target else importlib.import_module(target)
            )
        with self._noting("was refused"):
            for hook in hooks.keys() - RECORDS.keys():
                setattr(self, hook, self._guarded(hook, hooks[hook]))
            manager.register(self, f"{self.status.name} ({self.status.target})")
        if self.errors and manager.is_registered(self):  # pluggy keeps a partial registration
            manager.unregister(self)
        taken = [] if self.errors else [hook for hook in RECORDS if hook in hooks]
        for hook in taken:
            with self._noting(f"raised in {hook}"):
                self.records += _take_records(hook, hooks[hook])
        self.status = dataclasses.replace(
            self.status,
            load_ms=(time.perf_counter() - started) * 1e3,
            heavy_imports=tuple(n for n in HEAVY if n in sys.modules and n not in loaded),
        )

    def _guarded(self, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` wrapped so that exceptions of the plugin are logged."""

        @functools.wraps(function)  # pluggy inspects the names of the parameters
        def call(*args: Any) -> Any:
            try:
                answer = _take_answer(hook, function, args)
            except PASSED_ON:
                raise
            except BaseException as error:
                told = f"Plugin {self.status.origin} raised in {hook}: {one_line(error)}"
                if self._strict:
                    raise errors.PluginError(told) from error
                if hook not in self._warned:
                    logger.warning(told, exc_info=error)
                self._warned.add(hook)
                return None
            if isinstance(answer, str):
                return f"{' '.join(answer.split())} (veto of plugin {self.status.origin})"
            return answer

        return call


def hooks_of(plugin: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of `plugin`, a module or another object, by the hook they implement.

    Raises
    ------
    PluginLoadError
        If it implements an unknown hook or none at all, or has a hook that is not marked.
    """
    found: dict[str, Callable[..., Any]] = {}
    for name in dir(plugin):
        # Static lookup: a module with lazy exports would otherwise import all of them.
        if not isinstance(inspect.getattr_static(plugin, name, None), _FUNCTIONS):
            continue
        function = getattr(plugin, name)
        options = getattr(function, f"{hookspecs.PROJECT}_impl", None)
        if options is None:
            if name in HOOKS:
                raise _Refused(f"was refused: {name} is not marked with @hookimpl")
            continue
        hook = options["specname"] or name
        if hook not in HOOKS:
            if not options["optionalhook"]:
                near = difflib.get_close_matches(hook, HOOKS, n=1)
                advice = f"did you mean {near[0]}?" if near else f"available: {', '.join(HOOKS)}"
                raise _Refused(f"was refused: unknown hook {hook}; {advice}")
        elif hook in found or options["hookwrapper"] or options.get("wrapper"):
            raise _Refused(f"was refused: {hook} is implemented twice or as a wrapper")
        else:
            found[hook] = function
    if not found:
        raise _Refused("was refused: no function is marked with @hookimpl")
    return found


def _take_records(hook: str, function: Callable[..., Any]) -> list[Record]:
    """Call a registration hook and return its records."""
    expected = RECORDS[hook]
    returned = function()
    if isinstance(returned, (str, bytes)) or not isinstance(returned, Iterable):
        what = f"must return an iterable of {expected.__name__}"
        raise _Refused(f"{hook} {what}, not {_described(returned)}")
    records = list(islice(iter(returned), MAX_RECORDS + 1))
    if len(records) > MAX_RECORDS:
        raise _Refused(f"{hook} returned more than {MAX_RECORDS} records")
    for record in records:
        if not isinstance(record, expected):
            what = f"must return {expected.__name__} records"
            raise _Refused(f"{hook} {what}, not {_described(record)}")
    return records


#: Return types of the lifecycle hooks that have a result.
_ANSWERS: dict[str, type] = {"fib_veto": str, "fib_provenance": dict}


def _take_answer(hook: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a lifecycle hook and return its result, or None if it has none."""
    answer, kind = function(*args), _ANSWERS.get(hook)
    if kind is None or answer is None:
        return None
    if not isinstance(answer, kind) or not str(answer).strip():
        wanted = "a string" if kind is str else "a dictionary"
        raise TypeError(f"it must return {wanted} or None, not {_described(answer)}")
    return answer


def _described(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


# ------------------------------------------------------------------------------------ discovery


def discover(settings: Optional[Settings] = None) -> Catalog:
    """Load core's records and all plugins, and return a catalog of what they register.

    Broken plugins are left out, with one warning each on the logger of this module. No probe is
    run.

    Parameters
    ----------
    settings : Settings, optional
        What to load; by default from the environment.

    Returns
    -------
    Catalog
        Everything that is registered, and the state of each plugin.

    Raises
    ------
    PluginLoadError
        In strict mode, if a plugin is broken.
    PluginConflictError
        In strict mode, if a name is claimed twice.
    ConfigError
        If an environment variable has a value that is not allowed.
    """
    settings = settings or Settings.from_env()
    manager = registry.new_manager()
    plugins = [Plugin(source, strict=settings.strict) for source in sources(settings)]
    for plugin in plugins:
        reason = settings.why_blocked(plugin.status)
        if reason and plugin is not plugins[0]:  # the first is core
            plugin.status = dataclasses.replace(plugin.status, state="blocked", reason=reason)
        else:
            plugin.join(manager)
    for plugin in plugins if settings.strict else ():
        if plugin.errors:
            status = plugin.status
            raise errors.PluginLoadError(
                f"{status.sentence()} (FIB_STRICT_PLUGINS is set)",
                hint=f"Run `fib plugins doctor {status.name}`.",
            ) from plugin.errors[0]
    catalog = dataclasses.replace(_assemble(plugins, settings), hook=manager.hook)
    for status in catalog.plugins:
        if status.state == "broken":
            told, name = status.sentence().rstrip("."), status.name
            logger.warning("%s. Run `fib plugins doctor %s`.", told, name)
    return catalog


def _assemble(plugins: list[Plugin], settings: Settings) -> Catalog:
    probes: dict[str, Probe] = {}  # records with the same probe share its result
    entries = []
    for plugin in plugins:
        source = plugin.status
        for record in plugin.records:
            path = record.probe
            check = path and probes.setdefault(path, Probe(path, settings.probe_timeout_s))
            origin = (source.distribution, source.version, source.name)
            entries.append(Registered(record, *origin, check or None))
    catalog = Catalog.build(entries)
    if settings.strict and catalog.conflicts:
        raise errors.PluginConflictError(
            catalog.conflicts[0].sentence(), hint=registry.CONFLICT_HINT
        )
    for conflict in catalog.conflicts:
        for plugin in plugins:  # each plugin in the conflict gets a reason that names the others
            mine = (plugin.status.distribution, plugin.status.name)
            claims = conflict.claims
            others = [one.origin for one in claims if (one.distribution, one.plugin) != mine]
            if len(others) < len(claims):
                plugin.fail(
                    conflict.reason(others), errors.PluginConflictError(conflict.sentence())
                )
    for plugin in plugins:
        entries_used = catalog.from_plugin(plugin.status)
        used = tuple((entry.spec.kind, entry.name) for entry in entries_used)
        plugin.status = dataclasses.replace(plugin.status, records=used)
    return dataclasses.replace(catalog, plugins=tuple(plugin.status for plugin in plugins))


# --------------------------------------------------------------- the default catalog of a process

_lock = threading.RLock()
_catalog: Optional[Catalog] = None
_discovering = False


def default_catalog() -> Catalog:
    """Return the catalog of this process; the first call discovers plugins.

    Returns
    -------
    Catalog
        The same object until `reset_default_catalog`.

    Raises
    ------
    PluginError
        If a plugin calls this while being loaded; in strict mode, if one is broken.
    ConfigError
        If an environment variable has a value that is not allowed.
    """
    global _catalog, _discovering
    known = _catalog
    if known is not None:
        return known
    with _lock:
        if _discovering:
            raise errors.PluginError(
                "default_catalog() was called by a plugin that is still being loaded",
                hint="call it later, in the code that the plugin's factory names",
            )
        if _catalog is None:
            _discovering = True
            try:
                _catalog = discover()
            finally:
                _discovering = False
        return _catalog


def reset_default_catalog(catalog: Optional[Catalog] = None, *, replace: bool = True) -> None:
    """Discard the catalog of this process, so that the next use discovers plugins again.

    Parameters
    ----------
    catalog : Catalog, optional
        The catalog to use from now on, instead of discovery.
    replace : bool
        Whether to replace an existing catalog.
    """
    global _catalog
    with _lock:
        if replace or _catalog is None:
            _catalog = catalog


def language_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that results of any language depend on.

    Only factories of `LanguageSpec` records are imported.
    """
    from importlib import metadata

    found: dict[str, str] = {}
    for entry in default_catalog().languages:
        if entry.spec.factory:
            try:
                told = entry.load()()
                found |= {name: str(told[name]) for name in entry.spec.libraries if name in told}
            except Exception as error:  # noqa: BLE001 - the plugin's code
                logger.warning("The versions of %s are unknown: %s", entry.label, error)
            continue
        for name in entry.spec.libraries:
            with suppress(metadata.PackageNotFoundError, ValueError):
                found[name] = metadata.version(name)
    return found
