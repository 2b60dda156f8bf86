"""Where plugins come from: core, installed distributions, and modules that the user names."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flashinfer_bench._lazy import import_string
from flashinfer_bench._version import __version__
from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins.settings import Settings, canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import Distribution, EntryPoint

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "flashinfer_bench.plugins"
CORE = "core"
CORE_DISTRIBUTION = "flashinfer-bench-core"


@dataclass(frozen=True)
class Source:
    """A plugin that could be loaded.

    Parameters
    ----------
    name, distribution, version, target : str
        As in `PluginStatus`.
    load : callable
        Imports it and returns the plugin: a module or another object with hooks.
    named : bool
        Whether the user named it in ``FIB_PLUGINS``.
    """

    name: str
    distribution: str
    version: str
    target: str
    load: Callable[[], Any]
    named: bool = False


def sources(settings: Settings) -> Iterator[Source]:
    """Yield core, then installed plugins by (distribution, name), then the modules of `settings`.

    Parameters
    ----------
    settings : Settings
        Names the modules.

    Yields
    ------
    Source
        Not yet loaded, and not yet checked against what is blocked. A module that is installed
        as a plugin as well comes once.
    """
    yield _source(CORE, CORE_DISTRIBUTION, __version__, "flashinfer_bench.plugins.builtin")
    rest = dict.fromkeys(settings.modules)
    for source in installed_sources():
        named = source.target in settings.modules
        rest.pop(source.target, None)
        yield replace(source, named=named)
    for target in rest:
        yield replace(_source(target, "", "", target), named=True)


def installed_sources() -> list[Source]:
    """Return the plugins of all installed distributions, sorted by (distribution, name).

    Distributions are read one by one, so that damaged metadata of one hides no other.
    """
    from importlib.metadata import distributions

    found: dict[str, list[Source]] = {}
    for distribution in distributions():
        try:
            plugins = _plugins_of(distribution)
        except Exception as error:  # noqa: BLE001 - the metadata of any distribution may be damaged
            # Where it lies is the one thing that is known for sure, but the interface hides it.
            place = getattr(distribution, "_path", "a distribution")
            logger.warning("The entry points of %s cannot be read: %s", place, error)
            continue
        if plugins:  # the first one on sys.path is the one that is imported
            found.setdefault(canonical(plugins[0].distribution), plugins)
    flat = [source for plugins in found.values() for source in plugins]
    return sorted(flat, key=lambda source: (canonical(source.distribution), source.name))


def _plugins_of(distribution: Distribution) -> list[Source]:
    # Looking into the text first saves parsing the entry points of all that is installed.
    text = distribution.read_text("entry_points.txt")
    if text is None or ENTRY_POINT_GROUP not in text:
        return []
    points = [point for point in distribution.entry_points if point.group == ENTRY_POINT_GROUP]
    return [_installed(distribution, point) for point in points]


def _installed(distribution: Distribution, point: EntryPoint) -> Source:
    name = _field(distribution, "Name") or "unknown"
    return _source(point.name, name, _field(distribution, "Version"), point.value)


def _field(distribution: Distribution, name: str) -> str:
    values = distribution.metadata.get_all(name)
    return str(values[0]) if values else ""


def _source(name: str, distribution: str, version: str, target: str) -> Source:
    return Source(name, distribution, version, target, lambda: import_plugin(target))


def import_plugin(target: str) -> Any:
    """Import what the value of an entry point names.

    Parameters
    ----------
    target : str
        ``package.module`` or ``package.module:object``.

    Returns
    -------
    Any
        The module or object.

    Raises
    ------
    PluginLoadError
        If `target` has another form. What the import raises goes on to the caller.
    """
    module, colon, attribute = target.partition(":")
    parts = module.split(".") + (attribute.split(".") if colon else [])
    if not all(part.isidentifier() for part in parts):
        raise PluginLoadError(f"{target!r} is not of the form 'package.module:object'")
    return import_string(target) if colon else importlib.import_module(module)
