"""The suite for a whole plugin: its entry point, hooks and records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Union

import pytest

from fib_testing.records import (
    BASES,
    Conformance,
    cannot_be_used,
    check_answers,
    check_import,
    check_purity,
    check_summaries,
    check_types,
    keep,
    raised_by,
    require,
    require_constructible,
    require_none,
)
from flashinfer_bench import __version__
from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.errors import FibError
from flashinfer_bench.plugins import Record, Settings, canonical, discover, import_string

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = "flashinfer_bench.plugins"
"""The group of the entry points of plugins."""

_CORE = "flashinfer-bench-core"
_SECONDS = 120.0
_LOAD = (
    "import json\n"
    "from flashinfer_bench.plugins import discover\n"
    "records = [[entry.spec.kind, entry.name] for entry in discover()]\n"
    "print(json.dumps(records))\n"
)


@dataclass(frozen=True, kw_only=True)
class PluginCase:
    """A plugin.

    Parameters
    ----------
    plugin : str
        Name or value of its entry point; a value is ``package.module``.
    installed : bool
        Whether it is installed; otherwise it is loaded with ``FIB_PLUGINS``, and the checks of the
        entry point and the distribution are skipped.
    """

    plugin: str
    installed: bool = True

    def entry_points(self) -> list[EntryPoint]:
        """Return the installed entry points with this name or value."""
        points = entry_points(group=GROUP)
        return [point for point in points if self.plugin in (point.name, point.value)]

    @property
    def target(self) -> str:
        """Path of the hooks: ``package.module`` or ``package.module:object``."""
        points = self.entry_points() if self.installed else []
        return points[0].value if points else self.plugin


class PluginConformance(Conformance):
    """The contract of plugins with any records.

    Subclass it in a test module, and give it a fixture ``case``: a `PluginCase`, or just the name.

    Examples
    --------
    ::

        class TestMojoPlugin(PluginConformance):
            @pytest.fixture
            def case(self):
                return "fib_builder_mojo"
    """

    case_type: ClassVar[type] = PluginCase

    @pytest.fixture
    def plugin(self, case: Union[PluginCase, str], request: pytest.FixtureRequest) -> PluginCase:
        """Return the author's case."""
        if isinstance(case, str):
            return PluginCase(plugin=case)
        given: PluginCase = request.getfixturevalue("given")
        return given

    @pytest.fixture
    def found(self, plugin: PluginCase, request: pytest.FixtureRequest) -> Any:
        """Return the plugin's records, or the error of loading it."""
        return keep(request, ("records", plugin), lambda: _discover(plugin.target))

    @pytest.fixture
    def records(self, plugin: PluginCase, found: Any) -> list[Record]:
        """Return the plugin's records; skip the test if it cannot be loaded."""
        if isinstance(found, FibError):
            pytest.skip(f"{plugin.target} cannot be loaded: see test_it_loads")
        records: list[Record] = found
        return records

    @pytest.fixture
    def factories(self, records: list[Record]) -> list[tuple[str, str]]:
        """Return kind and path of each factory."""
        return [
            (
                "distributor" if getattr(record, "distributes", False) else record.kind,
                record.factory,
            )
            for record in records
        ]

    @pytest.fixture
    def module(self, plugin: PluginCase) -> str:
        """Return the plugin's module."""
        return plugin.target

    test_importing_the_plugin_is_light = check_import
    test_every_record_says_what_it_is = check_summaries
    test_every_factory_is_of_the_right_type = check_types
    test_every_probe_answers = check_answers
    test_every_probe_is_pure = check_purity

    def test_the_entry_point_is_installed(self, plugin: PluginCase) -> None:
        """The plugin has exactly one entry point in the group, with a simple name.

        Why it matters: plugins are found by entry points; FIB_DISABLE_PLUGINS takes names separated
        by commas.

        To do: add [project.entry-points."flashinfer_bench.plugins"] to pyproject.toml with one
        line, name = "package.module", and install the distribution. Use letters, digits, '_' and
        '-' for the name.
        """
        if not plugin.installed:
            pytest.skip("the case says that the plugin is not installed")
        points = plugin.entry_points()
        require(
            len(points) == 1,
            f"{len(points)} entry points of the group {GROUP!r} have the name or value "
            f"{plugin.plugin!r}",
        )
        name = points[0].name
        require(name.strip() and "," not in name, f"the name of the entry point is {name!r}")

    def test_the_distribution_requires_a_core_that_fits(self, plugin: PluginCase) -> None:
        """The distribution requires a range of versions of core that includes this one.

        Why it matters: pip would install the plugin with any core or none; `fib plugins doctor`
        reports a plugin as broken if its range does not match.

        To do: test with this core, and add its series to the dependencies, for example
        "flashinfer-bench-core~=0.2.0".
        """
        from packaging.requirements import Requirement

        points = plugin.entry_points() if plugin.installed else []
        if not points:
            pytest.skip("the plugin is not installed as a distribution")
        distribution = points[0].dist
        texts = (distribution.requires if distribution is not None else None) or []
        ours = [each for each in map(Requirement, texts) if canonical(each.name) == _CORE]
        require(ours, f"the distribution does not require {_CORE}")
        unfit = [str(each) for each in ours if not each.specifier.contains(__version__, True)]
        require(not unfit, f"the distribution requires {', '.join(unfit)}; this is {__version__}")

    def test_it_loads(self, found: Any) -> None:
        """The plugin loads alone in strict mode.

        Why it matters: a broken plugin is disabled with all its records.

        To do: see the message; `fib plugins doctor NAME` shows the traceback.
        """
        require(not isinstance(found, FibError), f"the plugin cannot be loaded: {found}")

    def test_it_registers_something(self, records: list[Record], plugin: PluginCase) -> None:
        """The hooks return records.

        Why it matters: if a hook returns nothing on some machines, users get no reason; probes
        report whether something is available.

        To do: always return the records, and let their probes report what is missing.
        """
        require(records, f"{plugin.target} registers nothing")

    def test_the_hooks_return_the_same_again(
        self, records: list[Record], plugin: PluginCase
    ) -> None:
        """Repeated discovery in one process gives the same records.

        Why it matters: reset_default_catalog() and tests repeat the discovery of plugins.

        To do: create the records in the hooks, each time they are called.
        """
        again = _discover(plugin.target)
        again = [] if isinstance(again, FibError) else again
        require(
            [repr(record) for record in again] == [repr(record) for record in records],
            f"{plugin.target} registered {_names(records)}, and then {_names(again)}",
        )

    def test_it_loads_in_strict_mode(self, plugin: PluginCase, records: list[Record]) -> None:
        """A new process with ``FIB_STRICT_PLUGINS=1`` loads it through ``FIB_PLUGINS``.

        Why it matters: continuous integration sets FIB_STRICT_PLUGINS=1; standard output is data,
        and records must not depend on the process.

        To do: load without warnings and independently of the tests' process, print nothing on
        import, and always register the same records.
        """
        done = _run(plugin, "-c", _LOAD)
        require(
            done.returncode == 0,
            f"a process that loads only core and {plugin.target} ended with status "
            f"{done.returncode}:\n{done.stderr[-1500:]}",
        )
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = []
        missing = [record for record in records if [record.kind, record.name] not in found]
        require(
            not missing, f"a new process printed {done.stdout[:300]!r}, without {_names(missing)}"
        )

    def test_names_are_unique(self, plugin: PluginCase) -> None:
        """Neither core nor another installed plugin uses the name of a record.

        Why it matters: of two records with the same kind and name, neither is used.

        To do: choose a more specific name.
        """
        catalog = discover(Settings(modules=(plugin.target,)))
        mine = {status.name for status in catalog.plugins if status.target == plugin.target}
        claimed = [
            conflict.sentence()
            for conflict in catalog.conflicts
            if any(claim.plugin in mine for claim in conflict.claims)
        ]
        require_none(claimed, "names that are used twice")

    def test_every_factory_takes_what_it_is_given(self, records: list[Record]) -> None:
        """Available factories can be called: executors with a device, others without arguments.

        Why it matters: the host calls them, for executors with a device (those that distribute:
        with settings), for others without arguments.

        To do: give __init__ no further required parameters. It must not search for tools or start
        anything; the probe and the first use do that.
        """
        usable = [
            record
            for record in records
            if record.kind in BASES and record.kind != "key_builder"
            if not cannot_be_used(record)
            if not raised_by(partial(import_string, record.factory))
        ]
        if not usable:
            pytest.skip("no factory of the plugin is available here")
        for record in usable:
            given: tuple[Any, ...] = getattr(record, "devices", ())[: record.kind == "executor"]
            if getattr(record, "distributes", False):
                given = (BenchmarkConfig(),)
            made = require_constructible(record.factory, *given)
            if hasattr(made, "close"):
                made.close()

    def test_every_command_runs(self, records: list[Record], plugin: PluginCase) -> None:
        """``fib NAME --help`` works, and shows the plugin's command.

        Why it matters: otherwise users cannot find out how to use the command.

        To do: make the factory a function with annotated parameters, or a typer.Typer.
        """
        commands = [record.name for record in records if record.kind == "command"]
        if not commands:
            pytest.skip("the plugin adds no commands")
        for name in commands:
            done = _run(plugin, "-m", "flashinfer_bench", *name.split(), "--help")
            require(
                done.returncode == 0 and "--help" in done.stdout,
                f"`fib {name} --help` ended with status {done.returncode}:\n"
                f"{(done.stderr or done.stdout)[-1500:]}",
            )


def _discover(target: str) -> Any:
    """Return the records of a plugin that is loaded alone, or the error of loading it."""
    try:
        catalog = discover(Settings(no_plugins=True, modules=(target,), strict=True))
    except FibError as error:
        return error
    return [entry.spec for entry in catalog if entry.plugin != "core"]


def _run(plugin: PluginCase, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with core and the given plugin alone."""
    own = {"FIB_NO_PLUGINS": "1", "FIB_PLUGINS": plugin.target, "FIB_STRICT_PLUGINS": "1"}
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **own, "FIB_DISABLE_PLUGINS": "", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def _names(records: Sequence[Record]) -> str:
    return ", ".join(f"{record.kind} {record.name!r}" for record in records) or "nothing"
