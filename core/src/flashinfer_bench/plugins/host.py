"""Discovery: from what is installed to a catalog."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import PluginConflictError, PluginLoadError
from flashinfer_bench.plugins import _messages as messages
from flashinfer_bench.plugins.catalog import Catalog, Conflict
from flashinfer_bench.plugins.loader import Loaded
from flashinfer_bench.plugins.probes import Probe
from flashinfer_bench.plugins.registered import Registered
from flashinfer_bench.plugins.settings import Settings
from flashinfer_bench.plugins.sources import CORE, Source, sources

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)


def discover(settings: Optional[Settings] = None) -> Catalog:
    """Load core's records and all plugins, and return what they registered.

    A plugin that is broken is set aside and warned about once, on this module's logger; all others
    are there. No probe is asked.

    Parameters
    ----------
    settings : Settings, optional
        What to load; by default, what the environment says.

    Returns
    -------
    Catalog
        Everything that is registered, and what became of each plugin.

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
    loaded = [_load(source, settings) for source in sources(settings)]
    catalog = _assemble(loaded, settings)
    for status in catalog.plugins:
        if status.state == "broken":
            logger.warning("%s", messages.broken(status))
    return catalog


def _load(source: Source, settings: Settings) -> Loaded:
    loaded = Loaded(source)
    blocked = settings.why_blocked(source.name, source.distribution, named=source.named)
    if blocked and source.name != CORE:
        loaded.block(blocked)
        return loaded
    loaded.run()
    if settings.strict and loaded.errors:
        status = loaded.status()
        raise PluginLoadError(
            f"{status.sentence()} (FIB_STRICT_PLUGINS is set)",
            hint=f"Run `fib plugins doctor {status.name}`.",
        ) from loaded.errors[0]
    return loaded


def _assemble(loaded: Sequence[Loaded], settings: Settings) -> Catalog:
    probes: dict[str, Probe] = {}
    owners: list[tuple[Registered[Any], Loaded]] = []
    for plugin in loaded:
        owners += [
            (_register(record, plugin, probes, settings), plugin) for record in plugin.records
        ]
    catalog = Catalog.build(entry for entry, _ in owners)
    if settings.strict and catalog.conflicts:
        first = catalog.conflicts[0]
        raise PluginConflictError(first.sentence(), hint=messages.CONFLICT_HINT)
    for conflict in catalog.conflicts:
        _blame(conflict, owners)
    refused = {(conflict.kind, conflict.name) for conflict in catalog.conflicts}
    return replace(catalog, plugins=tuple(plugin.status(refused) for plugin in loaded))


def _register(record: Any, plugin: Loaded, probes: dict[str, Probe], settings: Settings) -> Any:
    """Join `record` with its plugin; records that name the same probe share its answer."""
    probe = None
    if record.probe is not None:
        probe = probes.setdefault(record.probe, Probe(record.probe, settings.probe_timeout_s))
    source = plugin.source
    return Registered(record, source.distribution, source.version, source.name, probe)


def _blame(conflict: Conflict, owners: Sequence[tuple[Registered[Any], Loaded]]) -> None:
    """Note `conflict` with each plugin that takes part in it, naming the others."""
    mine = {id(claim) for claim in conflict.claims}
    claims = [(entry, plugin) for entry, plugin in owners if id(entry) in mine]
    error = PluginConflictError(conflict.sentence())
    for plugin in {id(plugin): plugin for _, plugin in claims}.values():
        others = [entry.origin for entry, owner in claims if owner is not plugin]
        reason = messages.takes_part(conflict.kind, conflict.name, others)
        plugin.fail(reason, error, raised=False)
