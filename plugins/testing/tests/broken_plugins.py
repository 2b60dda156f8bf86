"""Plugins with one defect each, and good ones, as sources: `write` installs them into a folder."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
from flashinfer_bench.plugins import *
from flashinfer_bench.plugins import hookimpl
TIMING = "flashinfer_bench.bench.timing.wall:WallClockTimer"
"""

TIMER = """
@hookimpl
def fib_register_timers():
    yield TimerSpec(**{"name": NAME, "devices": ("cpu",), "factory": TIMING, "summary": "A toy"})
"""


def timer(name):
    """Return the source of a plugin that registers one timer."""
    return f"{HEAD}\nNAME = {name!r}\n{TIMER}"


GOOD = (
    HEAD
    + """
@hookimpl
def fib_register_timers():
    yield TimerSpec(
        name="toy_clock", devices=["cpu"], factory=TIMING, summary="A toy", probe=PROBE
    )

@hookimpl
def fib_register_evaluators():
    yield EvaluatorSpec(
        name="toy_judge",
        op_types=["toy"],
        factory="flashinfer_bench.bench.evaluators.default:DefaultEvaluator",
        summary="A toy",
    )

@hookimpl
def fib_register_executors():
    yield ExecutorSpec(
        name="toy_start",
        devices=["cpu"],
        priority=1,
        factory="flashinfer_bench.bench.executors.spawn:SpawnExecutor",
        summary="A toy",
    )

@hookimpl
def fib_register_key_builders():
    yield KeyBuilderSpec(
        name="toy_keys",
        op_types=["toy"],
        factory="flashinfer_bench.apply:AxesOnlyKeyBuilder",
        summary="A toy",
    )

@hookimpl
def fib_register_commands():
    return [CommandSpec(name="toy", factory="toy_commands:hello", summary="Says hello")]

PROBE = "broken_probes:good"
"""
)

COMMANDS = """
def hello(name: str = "you"):
    "Say hello."
    print("hello", name)

def weird(*names: list[list[int]]):
    "Take what cannot be typed."
"""

FACTORIES = """
from flashinfer_bench.bench.timing.wall import WallClockTimer

class WantsArguments(WallClockTimer):
    def __init__(self, device):
        super().__init__()
"""


def command(name, factory):
    return (
        f"{HEAD}\n@hookimpl\ndef fib_register_commands():\n"
        f"    return [CommandSpec(name={name!r}, factory={factory!r}, summary='A toy')]\n"
    )


CARELESS = (
    HEAD
    + """
COMMON = {"devices": ("cpu",), "factory": TIMING, "summary": "A toy"}

@hookimpl
def fib_register_timers():
    yield TimerSpec(name="toy_clock", **COMMON)  # as that of another plugin is called
    yield TimerSpec(name="toy_silent", **COMMON | {"summary": ""})
    yield TimerSpec(name="toy_lost", **COMMON | {"factory": "toy_factories:Lost"})
    yield TimerSpec(name="toy_arguments", **COMMON | {"factory": "toy_factories:WantsArguments"})
    yield TimerSpec(name="toy_raises", **COMMON, probe="broken_probes:raises")
    yield TimerSpec(name="toy_moody", **COMMON, probe="broken_probes:moody")
"""
    + command("toy_weird", "toy_commands:weird")
)
MODULES = {
    "toy_commands": COMMANDS,
    "toy_factories": FACTORIES,
    "toy_good": GOOD,
    "toy_absent": timer("toy_absent"),
    "toy_twice": timer("toy_twice"),
    "toy_outdated": timer("toy_outdated"),
    "toy_loud": "import numpy\nprint('toys!')\n" + timer("toy_loud"),
    "toy_raises": "raise RuntimeError('no toys')\n",
    "toy_nothing": HEAD + "\n@hookimpl\ndef fib_register_timers():\n    return ()\n",
    "toy_once": f"{HEAD}\nONCE = iter([TimerSpec(name='toy_once', devices=['cpu'], "
    "factory=TIMING, summary='A toy')])\n\n"
    "@hookimpl\ndef fib_register_timers():\n    return ONCE\n",
    "toy_careless": CARELESS,
    "toy_shadow": command("report", "toy_commands:hello"),
}

INSTALLED = {
    "toy-good": ("toy_good", "flashinfer-bench-core~=0.2.0"),
    "toy-twice": ("toy_twice", "flashinfer-bench-core~=0.2.0"),
    "toy-outdated": ("toy_outdated", "flashinfer-bench-core~=0.1.0"),
}


def write(folder: Path) -> None:
    """Write all modules, and the metadata of those that are to be found as installed."""
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(dedent(source))
    for name, (module, requirement) in INSTALLED.items():
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {requirement}\n"
        )
        points = f"[flashinfer_bench.plugins]\n{name} = {module}\n"
        if name == "toy-twice":
            points += f"again = {module}\n"
        info.joinpath("entry_points.txt").write_text(points)
