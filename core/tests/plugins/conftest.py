"""Fixture distributions, installed into a folder that is thrown away.

Each plugin is found by its metadata, imported by its entry point, and observed from a process of
its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from flashinfer_bench import env
from flashinfer_bench.plugins import reset_default_catalog

if TYPE_CHECKING:
    from pathlib import Path

MAIN = "from flashinfer_bench.cli.main import main; main()"


@dataclass(frozen=True)
class Distribution:
    """What is installed: modules by file name, and entry points by name."""

    name: str
    modules: dict[str, str]
    entry_points: dict[str, str]
    version: str = "1.0"
    requires: tuple[str, ...] = ()

    def install(self, site: Path) -> None:
        """Leave what pip leaves of a wheel, as far as anybody reads it."""
        info = f"{self.name.replace('-', '_')}-{self.version}.dist-info"
        files = {name: dedent(source) for name, source in self.modules.items()}
        requires = "".join(f"Requires-Dist: {text}\n" for text in self.requires)
        described = f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
        files[f"{info}/METADATA"] = described + requires
        points = "".join(f"{name} = {target}\n" for name, target in self.entry_points.items())
        files[f"{info}/entry_points.txt"] = f"[flashinfer_bench.plugins]\n{points}"
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _builder(name: str, module: str, *, factory: str = "Impl", probe: str = "") -> str:
    more = f", probe='{module}_impl:{probe}'" if probe else ""
    return (
        f"BuilderSpec(name='{name}', handles=(('{name}lang', None),), "
        f"factory='{module}_impl:{factory}'{more})"
    )


def _module(body: str) -> str:
    return "from flashinfer_bench.plugins import *\n" + dedent(body)


IMPL = "class Impl:\n    pass\n"


def _simple(name: str) -> Distribution:
    """A plugin in good order with a single builder of the same name."""
    module = f"fixture_{name}"
    hook = f"""
    @hookimpl
    def fib_register_builders():
        yield {_builder(name, module)}
    """
    return Distribution(
        f"fib-fixture-{name}",
        {f"{module}.py": _module(hook), f"{module}_impl.py": IMPL},
        {name: module},
    )


def _plugin(
    name: str, body: str, *, impl: str = IMPL, target: str = "", **options: object
) -> Distribution:
    module = f"fixture_{name.replace('-', '_')}"
    return Distribution(
        f"fib-fixture-{name}",
        {f"{module}.py": _module(body), f"{module}_impl.py": dedent(impl)},
        {name: target or module},
        **options,  # type: ignore[arg-type]
    )


GOOD = Distribution(
    "fib-fixture-good",
    {
        "fixture_good/__init__.py": _module(
            """
            CODE = "fixture_good.code"
            HANDLES = (("goodlang", None), ("goodlang", "tight"))

            @hookimpl
            def fib_register_builders():
                return [BuilderSpec(name="good", handles=HANDLES,
                                    factory=CODE + ":GoodBuilder", summary="Builds good code")]

            @hookimpl
            def fib_register_timers():
                yield TimerSpec(name="good-timer", devices=("gooddevice",), factory=CODE + ":Timer")

            @hookimpl
            def fib_register_key_builders():
                yield KeyBuilderSpec(name="good-keys", op_types=("goodop",), factory=CODE + ":Keys")

            @hookimpl
            def fib_register_adapters():
                yield AdapterSpec(name="good.adapter", targets=("re.sub",), factory=CODE + ":Ad")

            @hookimpl
            def fib_register_evaluators():
                yield EvaluatorSpec(name="good-eval", op_types=("goodop",), factory=CODE + ":Eval")

            @hookimpl
            def fib_register_executors():
                yield ExecutorSpec(name="good-exec", devices=("gooddevice",),
                                   factory=CODE + ":Exec", probe=CODE + ":check")

            @hookimpl
            def fib_register_commands():
                yield CommandSpec(name="greet", factory=CODE + ":greet", summary="Say hello")
            """
        ),
        "fixture_good/code.py": """
            from flashinfer_bench.plugins import Availability

            class GoodBuilder: ...
            class Timer: ...
            class Keys: ...
            class Ad: ...
            class Eval: ...
            class Exec: ...

            def check():
                return Availability(True, "found it")

            def greet(name: str = "world") -> None:
                print(f"hello {name}")
            """,
    },
    {"good": "fixture_good"},
    requires=("flashinfer-bench-core>=0.1", "unrelated>=99"),
)

MOJO = Distribution(
    "fib-builder-mojo",
    {"fib_builder_mojo.py": "def helper():\n    import mojo_runtime\n\n\nhelper()\n"},
    {"mojo": "fib_builder_mojo"},
    version="0.1",
)

RAISES = _plugin(
    "raises",
    f"""
    @hookimpl
    def fib_register_builders():
        return [{_builder("survivor", "fixture_raises")}]

    @hookimpl
    def fib_register_timers():
        raise ValueError("no clock\\nto be found")
    """,
)

MIDWAY = _plugin(
    "midway",
    f"""
    @hookimpl
    def fib_register_builders():
        yield {_builder("midway-first", "fixture_midway")}
        raise KeyError("second")
        yield {_builder("midway-third", "fixture_midway")}
    """,
)

MISSPELLED = _plugin(
    "misspelled",
    f"""
    @hookimpl
    def fib_register_bulders():
        yield {_builder("misspelled", "fixture_misspelled")}

    @hookimpl
    def fib_register_timers():
        return ()
    """,
)

WRONG_TYPE = _plugin(
    "wrongtype",
    f"""
    @hookimpl
    def fib_register_builders():
        yield {_builder("wrongtype", "fixture_wrongtype")}
        yield TimerSpec(name="lost", devices=("cpu",), factory="a:b")
    """,
)

TWINS = tuple(
    _plugin(
        name,
        f"""
        @hookimpl
        def fib_register_builders():
            yield {_builder("twin", f"fixture_{name.replace('-', '_')}")}
            yield {_builder(f"{name}-own", f"fixture_{name.replace('-', '_')}")}
        """,
    )
    for name in ("twin-a", "twin-b")
)

EXITS = _plugin("exits", "import sys\nsys.exit(7)\n")

SLOW = _plugin(
    "slow",
    f"""
    @hookimpl
    def fib_register_builders():
        yield {_builder("slow", "fixture_slow", probe="two_seconds")}
        yield {_builder("stuck", "fixture_slow", probe="forever")}
    """,
    impl="""
    import time
    from flashinfer_bench.plugins import Availability

    def two_seconds():
        time.sleep(2)
        return Availability(True)

    def forever():
        time.sleep(100_000)
    """,
)

PROBES = _plugin(
    "probes",
    "\n".join(
        [
            "@hookimpl",
            "def fib_register_builders():",
            *(
                f"    yield {_builder(f'probe-{probe}', 'fixture_probes', probe=probe)}"
                for probe in ("raises", "exits", "wrong", "missing", "refuses")
            ),
        ]
    ),
    impl="""
    import sys
    from flashinfer_bench.plugins import Availability

    def raises():
        raise OSError("libcuda.so.1: cannot open")

    def exits():
        sys.exit("goodbye")

    def wrong():
        return True

    def refuses():
        return Availability(False, "no CUDA device", "install the driver")
    """,
)

CHATTY = _plugin(
    "chatty",
    f"""
    print("chatter at import")

    @hookimpl
    def fib_register_builders():
        print("chatter in a hook")
        yield {_builder("chatty", "fixture_chatty", probe="check")}
    """,
    impl=IMPL
    + dedent(
        """
        from flashinfer_bench.plugins import Availability

        def check():
            print("chatter in a probe")
            return Availability(True)
        """
    ),
)

TYPO = _plugin(
    "typo",
    f"""
    @hookimpl
    def fib_register_builders():
        yield {_builder("typo", "fixture_typo", factory="Misnamed")}
    """,
)

FUTURE = _plugin(
    "future",
    f"""
    @hookimpl
    def fib_register_builders():
        yield {_builder("future", "fixture_future")}
    """,
    requires=("flashinfer-bench-core~=99.0",),
)

MISSING = Distribution("fib-fixture-missing", {}, {"missing": "fixture_not_in_the_wheel"})

ALL = (
    *(GOOD, MOJO, RAISES, MIDWAY, MISSPELLED, WRONG_TYPE, *TWINS, EXITS, SLOW, PROBES, CHATTY),
    *(TYPO, FUTURE, MISSING, _simple("unwanted")),
)


@dataclass
class Environment:
    """A folder with installed distributions, and processes that have it on their path."""

    site: Path
    variables: dict[str, str] = field(default_factory=dict)

    def python(self, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Run `code`; the time limit is there to end a test that hangs, not to measure."""
        names = {variable.name for variable in env.VARIABLES}
        inherited = {name: value for name, value in os.environ.items() if name not in names}
        return subprocess.run(
            [sys.executable, "-c", dedent(code), *arguments],
            env={**inherited, "PYTHONPATH": str(self.site), **self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=280,
        )

    def fib(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Run the command line."""
        return self.python(MAIN, *arguments, **variables)

    def fib_json(self, *arguments: str, **variables: str) -> dict:
        """Run the command line and read what it writes."""
        done = self.fib(*arguments, "--json", **variables)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Every fixture distribution, good and bad, side by side.

    One of them is disabled. Where the plugin with the slow probes is not the subject, it is too,
    and the other probes have all the time that a busy machine may need.
    """
    installed = Environment(tmp_path_factory.mktemp("environment"))
    for distribution in ALL:
        distribution.install(installed.site)
    installed.variables.update(FIB_DISABLE_PLUGINS="unwanted,slow", FIB_PROBE_TIMEOUT_S="60")
    return installed


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Start each test without settings and without a catalog, whatever the run was started with."""
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    reset_default_catalog()
    yield
    reset_default_catalog()
