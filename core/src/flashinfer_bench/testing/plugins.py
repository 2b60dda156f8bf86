"""The suite for a whole plugin: its entry point, its hooks, and all that it registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, Union

import pytest

from flashinfer_bench._lazy import import_string
from flashinfer_bench._version import __version__
from flashinfer_bench.errors import FibError
from flashinfer_bench.testing.record_checks import (
    BASES,
    look,
    require_answers,
    require_constructible,
    require_factory,
    require_light,
    require_pure,
    require_summary,
)
from flashinfer_bench.testing.records import keep, refuse_case
from flashinfer_bench.testing.verdict import bullets, require, skip

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint

    from flashinfer_bench.plugins import Record
    from flashinfer_bench.testing.record_checks import Step

GROUP = "flashinfer_bench.plugins"
"""The group of entry points under which plugins are made known."""

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
        Name of its entry point, or what the entry point's value is: ``package.module``.
    installed : bool
        Whether it is installed; otherwise it is loaded by way of ``FIB_PLUGINS``, and the checks
        of the entry point and the distribution are skipped.
    """

    plugin: str
    installed: bool = True

    def entry_points(self) -> list[EntryPoint]:
        """Return the installed entry points of that name or value."""
        from importlib.metadata import entry_points

        points = entry_points(group=GROUP)
        return [point for point in points if self.plugin in (point.name, point.value)]

    @property
    def target(self) -> str:
        """Where the hooks are: ``package.module``, or ``package.module:object``."""
        points = self.entry_points() if self.installed else []
        return points[0].value if points else self.plugin


class PluginConformance:
    """All that a plugin must keep to, whatever it registers.

    Subclass it in a test module, and give it a fixture ``case``: a `PluginCase`, or just the name.

    Examples
    --------
    ::

        class TestMojoPlugin(PluginConformance):
            @pytest.fixture
            def case(self):
                return "fib_builder_mojo"
    """

    @pytest.fixture
    def case(self, request: pytest.FixtureRequest) -> Union[PluginCase, str]:
        """Return what is to be checked; the author's class has another one in its place."""
        refuse_case(request, PluginCase)

    @pytest.fixture
    def plugin(self, case: object, request: pytest.FixtureRequest) -> PluginCase:
        """Return the author's case."""
        if isinstance(case, str):
            return PluginCase(plugin=case)
        if not isinstance(case, PluginCase):
            refuse_case(request, PluginCase, case)
        return case

    @pytest.fixture
    def found(self, plugin: PluginCase, request: pytest.FixtureRequest) -> Any:
        """Return what the plugin registers, or the error that says why it cannot be loaded."""
        return keep(request, ("records", plugin), lambda: _discover(plugin.target))

    @pytest.fixture
    def records(self, plugin: PluginCase, found: Any) -> list[Record]:
        """Return what the plugin registers; skip the test where it cannot be loaded."""
        if isinstance(found, FibError):
            skip(f"{plugin.target} cannot be loaded: see test_it_loads")
        records: list[Record] = found
        return records

    @pytest.fixture
    def probed(
        self, records: list[Record], request: pytest.FixtureRequest
    ) -> list[tuple[str, Step]]:
        """Return what a fresh interpreter found out about each probe."""
        probes = sorted({record.probe for record in records if record.probe is not None})
        if not probes:
            skip("no record has a probe: all of them count as available everywhere")
        return [(path, keep(request, ("probe", path), partial(_ask, path))) for path in probes]

    def test_the_entry_point_is_installed(self, plugin: PluginCase) -> None:
        """Exactly one entry point of the group names the plugin, and its name is a plain one."""
        if not plugin.installed:
            skip("the case says that the plugin is not installed")
        points = plugin.entry_points()
        require(
            len(points) == 1,
            f"{len(points)} entry points of the group {GROUP!r} have the name or value "
            f"{plugin.plugin!r}",
            why="this is how the host finds plugins",
            fix=f'put [project.entry-points."{GROUP}"] into pyproject.toml with one line, '
            'name = "package.module", and install the distribution',
        )
        require(
            points[0].name.strip() and "," not in points[0].name,
            f"the entry point is called {points[0].name!r}",
            why="FIB_DISABLE_PLUGINS takes names, with commas between them",
            fix="use letters, digits, '_' and '-'",
        )

    def test_the_distribution_requires_a_core_that_fits(self, plugin: PluginCase) -> None:
        """The distribution depends on core, with a range that this core is in."""
        from packaging.requirements import Requirement

        if not plugin.installed or not plugin.entry_points():
            skip("the plugin is not installed as a distribution")
        distribution = plugin.entry_points()[0].dist
        texts = (distribution.requires if distribution is not None else None) or []
        ours = [each for each in map(Requirement, texts) if _same(each.name, _CORE)]
        require(
            ours,
            f"the distribution does not require {_CORE}",
            why="pip would install the plugin beside any core, or none",
            fix=f'dependencies = ["{_CORE}~={_series()}"]',
        )
        unfit = [each for each in ours if not each.specifier.contains(__version__, True)]
        require(
            not unfit,
            f"the distribution requires {', '.join(map(str, unfit))}, and this is {__version__}",
            why="`fib plugins doctor` calls the plugin broken",
            fix="test with this core, and widen the range",
        )

    def test_importing_the_plugin_is_light(self, plugin: PluginCase) -> None:
        """The module of the entry point imports no heavy library, and changes nothing."""
        require_light(plugin.target, look(plugin=plugin.target)["plugin"])

    def test_it_loads(self, found: Any) -> None:
        """The host takes it, alone, where nothing is forgiven."""
        require(
            not isinstance(found, FibError),
            f"the host refuses the plugin: {found}",
            why="a broken plugin is set aside, with all that it provides",
            fix="see the message; `fib plugins doctor NAME` shows the traceback",
        )

    def test_it_registers_something(self, records: list[Record], plugin: PluginCase) -> None:
        """The hooks return records."""
        require(
            records,
            f"{plugin.target} registers nothing",
            why="whether something can be used here is for its probe to say; a hook that returns "
            "nothing on some machines leaves the user without a reason",
            fix="return the records always, and let their probes say no",
        )

    def test_the_hooks_return_the_same_again(
        self, records: list[Record], plugin: PluginCase
    ) -> None:
        """Discovery may happen again in one process."""
        again = _discover(plugin.target)
        again = [] if isinstance(again, FibError) else again
        require(
            [repr(record) for record in again] == [repr(record) for record in records],
            f"{plugin.target} registered {_names(records)}, and then {_names(again)}",
            why="reset_default_catalog() and tests discover plugins anew",
            fix="make the hooks functions that build their records when they are called",
        )

    def test_it_loads_in_strict_mode(self, plugin: PluginCase, records: list[Record]) -> None:
        """A new process with ``FIB_STRICT_PLUGINS=1`` loads it, by way of ``FIB_PLUGINS``."""
        done = _run([sys.executable, "-c", _LOAD], plugin.target)
        require(
            done.returncode == 0,
            f"a process that loads only core and {plugin.target} ended with status "
            f"{done.returncode}:\n{done.stderr[-1500:]}",
            why="continuous integration sets FIB_STRICT_PLUGINS=1",
            fix="load without warnings and without help from the tests' process",
        )
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = []
        missing = [record for record in records if [record.kind, record.name] not in found]
        require(
            not missing,
            f"a new process printed {done.stdout[:300]!r}, without {_names(missing)}",
            why="standard output is data, and records must not depend on who asks",
            fix="print nothing on import, and register the same everywhere",
        )

    def test_names_are_unique(self, plugin: PluginCase) -> None:
        """No other installed plugin, and not core, claims the name of a record."""
        from flashinfer_bench.plugins import Settings, discover

        catalog = discover(Settings(modules=(plugin.target,)))
        mine = {status.name for status in catalog.plugins if status.target == plugin.target}
        claimed = [
            conflict.sentence()
            for conflict in catalog.conflicts
            if any(claim.plugin in mine for claim in conflict.claims)
        ]
        require(
            not claimed,
            "names that are claimed twice:\n" + bullets(claimed),
            why="of two records of one kind and name neither is used",
            fix="give yours a name that says what is special about it",
        )

    def test_every_record_says_what_it_is(self, records: list[Record]) -> None:
        """Each has a summary, in one line, by which it can be told from others."""
        for record in records:
            require_summary(record)

    def test_every_factory_is_of_the_right_type(self, records: list[Record]) -> None:
        """Each path leads to a subclass of its kind's base; of a command, to something callable."""
        for record in records:
            require_factory(record.factory, record.kind)

    def test_every_factory_takes_what_it_is_given(self, records: list[Record]) -> None:
        """What can be used here can be constructed: an executor for a device, others bare."""
        from flashinfer_bench.plugins import ExecutorSpec

        ours = [r for r in records if r.kind in BASES and r.kind != "key_builder"]
        usable = [record for record in ours if _available(record) and _imports(record)]
        if not usable:
            skip("nothing that the host constructs can be used here")
        for record in usable:
            device = record.devices[:1] if isinstance(record, ExecutorSpec) else ()
            made = require_constructible(record.factory, *device)
            if hasattr(made, "close"):
                made.close()

    def test_every_probe_answers(self, probed: list[tuple[str, Step]]) -> None:
        """Each probe answers in time, and a no comes with reason and remedy."""
        for path, step in probed:
            require_answers(path, step)

    def test_every_probe_is_pure(self, probed: list[tuple[str, Step]]) -> None:
        """Each probe says the same each time, imports nothing heavy, changes nothing."""
        for path, step in probed:
            require_pure(path, step)

    def test_every_command_runs(self, records: list[Record], plugin: PluginCase) -> None:
        """``fib NAME --help`` works, and it is the plugin's command that it shows."""
        commands = [record.name for record in records if record.kind == "command"]
        if not commands:
            skip("the plugin adds no commands")
        for name in commands:
            _check_command(name, plugin.target)


def _discover(target: str) -> Any:
    """Return the records of a plugin that is loaded alone, or the error that says why not."""
    from flashinfer_bench.plugins import Settings, discover

    try:
        catalog = discover(Settings(no_plugins=True, modules=(target,), strict=True))
    except FibError as error:
        return error
    return [entry.spec for entry in catalog if entry.plugin != "core"]


def _ask(path: str) -> Step:
    return look(probe=path)["probe"]


def _available(record: Record) -> bool:
    from flashinfer_bench.plugins import Catalog

    return bool(Catalog.of(record, timeout_s=30.0).find(record.kind, record.name).availability())


def _imports(record: Record) -> bool:
    try:
        import_string(record.factory)
    except Exception:  # noqa: BLE001 - another test reports it
        return False
    return True


def _check_command(name: str, target: str) -> None:
    command = [sys.executable, "-m", "flashinfer_bench", name, "--help"]
    without = _run(command, "")
    require(
        without.returncode != 0,
        f"`fib {name}` is there without the plugin: it is a command of core",
        why="core's own commands go first, and the plugin's is never run",
        fix="choose a name that core does not use; see `fib --help`",
    )
    done = _run(command, target)
    require(
        done.returncode == 0 and "--help" in done.stdout,
        f"`fib {name} --help` ended with status {done.returncode}:\n"
        f"{(done.stderr or done.stdout)[-1500:]}",
        why="users cannot find out how to use the command",
        fix="make the factory a function with annotated parameters, or a typer.Typer",
    )


def _run(command: Sequence[str], plugins: str) -> subprocess.CompletedProcess[str]:
    """Run a command with core and the given plugins alone."""
    own = {"FIB_NO_PLUGINS": "1", "FIB_PLUGINS": plugins, "FIB_STRICT_PLUGINS": "1"}
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        command,
        env={**os.environ, **own, "FIB_DISABLE_PLUGINS": "", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def _same(name: Optional[str], other: str) -> bool:
    return (name or "").lower().replace("_", "-").replace(".", "-") == other


def _series() -> str:
    return ".".join([*__version__.split(".")[:2], "0"])


def _names(records: Sequence[Record]) -> str:
    return ", ".join(f"{record.kind} {record.name!r}" for record in records) or "nothing"
