"""What a trace says about where it came from: host, plugins, toolchain and settings."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.host import host_of
from flashinfer_bench.bench.replay.settings import recorded_settings
from flashinfer_bench.errors import FibError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.data import Definition, Solution, Workload
    from flashinfer_bench.plugins import Catalog
    from flashinfer_bench.plugins.registered import Registered

logger = logging.getLogger(__name__)

_CORE = "flashinfer-bench-core"
_TOOLS = ("compiler", "c_compiler", "nvcc", "cuda_architectures")
_MOST_CHARACTERS = 80


class Origin:
    """Gathers what is recorded about the evaluations on one workload.

    Parameters
    ----------
    config : BenchmarkConfig
        The settings of the run.
    definition, workload
        What is evaluated.
    device : str
        ``cpu`` or ``cuda:N``.
    catalog : Catalog
        The plugins.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        definition: Definition,
        workload: Workload,
        device: str,
        catalog: Catalog,
    ) -> None:
        self._config = config
        self._device = device
        self._catalog = catalog
        self._host = host_of(device)
        self._settings = recorded_settings(config, definition, workload)
        self._common = self._plugins_of_the_run(definition)
        self._toolchains: dict[str, dict[str, str]] = {}

    def fields(self, definition: Definition, solution: Solution, builder: str) -> dict[str, Any]:
        """Return fields of a `Provenance`; what is not known, or as by default, is left out.

        Parameters
        ----------
        definition, solution
            What was evaluated.
        builder : str
            Name of its builder; empty if it is not known.
        """
        clocks = self._host.clocks()
        entry = _chosen(lambda: self._select_builder(solution, builder))
        found = {
            "host": self._host.fingerprint,
            "driver": self._host.driver,
            "sm_clock_mhz": clocks.sm,
            "memory_clock_mhz": clocks.memory,
            "settings": self._settings,
            "plugins": {**_named("builder", entry), **self._common},
            "toolchain": self._toolchain(entry, definition, solution),
        }
        return {name: value for name, value in found.items() if value}

    def _select_builder(self, solution: Solution, name: str) -> Registered[Any]:
        if name:
            return self._catalog.find("builder", name)
        spec = solution.spec
        return self._catalog.select_builder(spec.language, spec.binding, device=self._device)

    def _select_evaluator(self, definition: Definition) -> Registered[Any]:
        if self._config.evaluator:
            return self._catalog.find("evaluator", self._config.evaluator)
        return self._catalog.select_evaluator(definition)

    def _plugins_of_the_run(self, definition: Definition) -> dict[str, str]:
        config, catalog, device = self._config, self._catalog, self._device
        choices: dict[str, Callable[[], Registered[Any]]] = {
            "evaluator": lambda: self._select_evaluator(definition),
            "timer": lambda: catalog.select_timer(device, config.timer),
            "executor": lambda: catalog.select_executor(device, config.executor),
        }
        found = [_named(role, _chosen(choose)) for role, choose in choices.items()]
        return {role: origin for one in found for role, origin in one.items()}

    def _toolchain(
        self, entry: Optional[Registered[Any]], definition: Definition, solution: Solution
    ) -> dict[str, str]:
        if entry is None or not entry.spec.compiles:
            return {}
        key = solution.hash()
        if not self._toolchains.get(key):  # it may not have been built before
            self._toolchains[key] = toolchain_of(definition, solution)
        return self._toolchains[key]


def _chosen(choose: Callable[[], Registered[Any]]) -> Optional[Registered[Any]]:
    try:
        return choose()
    except FibError as error:  # whoever needs it says so; a record must not end a run
        logger.debug("a plugin is not recorded: %s", error)
        return None


def _named(role: str, entry: Optional[Registered[Any]]) -> dict[str, str]:
    """Return where a plugin comes from, unless it is of core, whose release is recorded anyway."""
    if entry is None or entry.distribution == _CORE:
        return {}
    return {role: entry.origin}


def toolchain_of(definition: Definition, solution: Solution) -> dict[str, str]:
    """Return what a solution was compiled with, as its build in the cache says.

    Returns
    -------
    dict of str to str
        The versions of compilers; empty if it is not compiled, or was only in memory.
    """
    try:
        return next(_toolchains(definition, solution), {})
    except OSError as error:
        logger.debug("no toolchain to record: %s", error)
        return {}


def _toolchains(definition: Definition, solution: Solution) -> Iterator[dict[str, str]]:
    from flashinfer_bench.compile.toolkit.info import BuildInfo

    for folder in _builds():
        info = BuildInfo.read(folder)
        if info is not None and _is_of(folder, info.key, definition, solution):
            tools = {name: info.key[name] for name in _TOOLS if name in info.key}
            yield {name: _first_line(value) for name, value in tools.items()}


def _first_line(text: object) -> str:
    """Return what a compiler says of itself, without its licence."""
    return str(text).partition("\n")[0][:_MOST_CHARACTERS]


def _builds() -> list[Path]:
    """Return the folders of all builds in the cache, the one that was used last first."""
    from flashinfer_bench import env
    from flashinfer_bench.compile.toolkit.cache import COMPLETE

    marks = [(path.stat().st_mtime, path) for path in env.cache_path().glob(f"*/*/{COMPLETE}")]
    return [path.parent for _, path in sorted(marks, reverse=True)]


def _is_of(folder: Path, key: dict[str, str], definition: Definition, solution: Solution) -> bool:
    """Return whether a build is of this very content: its name follows from all that it is of."""
    from flashinfer_bench.compile.toolkit.naming import content_digest

    prefix, _, digest = folder.name.rpartition("_")
    text = json.dumps(key, sort_keys=True)
    return digest == content_digest(definition, solution, prefix, text)
