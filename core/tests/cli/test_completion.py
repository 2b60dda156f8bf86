"""What the shell offers on <TAB>: commands, allowed values, what is registered, what is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer

from fib_tests import forked
from flashinfer_bench.cli.commands import LazyCommand, _add, as_command
from flashinfer_bench.cli.completion import add_completion
from flashinfer_bench.cli.main import app
from flashinfer_bench.plugins import KINDS

# What nobody can list, or the shell itself does: files, numbers, dates, new names.
OPEN = {
    *("DIR", "FILE", "FOLDER", "PATH", "ARCHIVE", "ARCHIVE|FOLDER", "REPORT.json", "TRACE"),
    *("DATASET", "[DATASET]", "[REPO[@REV]]", "N", "S", "X", "P...", "MHZ", "RATIO", "SIZE"),
    *("DATE", "TIME", "KEY=VALUE", "NAME=SIZE...", "AXIS=SIZE...", "AUTHOR", "TEXT..."),
    *("URL", "ADDRESS", "ORIGIN", "TOKEN", "FILE|FOLDER"),
}
OPEN_ONES = {
    *("new definition name", "new solution name", "plugins new name"),
    *("apply build hardware", "apply explain hardware", "apply list hardware"),
    *("report visualize title", "import max_gib", "serve token add name"),
    *("serve token revoke name", "profile kernel", "fleet status ray_address"),
    *("run ray_address", "run ray_nodes", "run ray_resource", "run max_deviation"),
}
PLUGIN = """
from flashinfer_bench.plugins import CommandSpec, TimerSpec, hookimpl

print("the plugin speaks")

@hookimpl
def fib_register_timers():
    yield TimerSpec(name="sundial", factory="nowhere:Sundial", devices=("cpu",), summary="Slow.")

@hookimpl
def fib_register_commands():
    yield CommandSpec(name="broken", factory="nowhere:app", summary="Fail.")
"""


def parameters():
    """Yield the path and each parameter of all commands that are installed."""
    root = typer.main.get_command(app)
    for listed in root.listed():
        if listed.factory and not listed.group:
            command = as_command(listed.load(), listed.word)
            for each in root.listed():
                if each.group == listed.name and each.factory:
                    _add(command, each)
            yield from _parameters(command, listed.name)


def _parameters(command, path):
    if isinstance(command, LazyCommand):
        command = as_command(command._listed.load(), path.rpartition(" ")[2])
    add_completion(command, path)
    yield from ((path, param) for param in command.params)
    for name, each in getattr(command, "commands", {}).items():
        yield from _parameters(each, f"{path} {name}")


def test_whatever_has_a_closed_set_is_completed():
    without = [
        f"{path} {param.name}"
        for path, param in parameters()
        if not (getattr(param, "is_flag", False) or param.metavar in OPEN)
        and not (param.type_descriptor.is_choice or param._custom_shell_complete)
    ]
    assert set(without) <= OPEN_ONES


def command(*options):
    code = "from typer.main import get_command; from flashinfer_bench.cli.main import app; "
    code += "get_command(app).main(prog_name='fib')"
    return [sys.executable, *options, "-c", code]


def environment(words, **env):
    line = f"fib {words}"
    asked = {"_FIB_COMPLETE": "complete_bash", "COMP_WORDS": line}
    return {**os.environ, **asked, "COMP_CWORD": str(len(line.split(" ")) - 1), **env}


def complete(words, **env):
    """Return what a new process offers, which imports no torch."""
    pipes = {"capture_output": True, "text": True}
    done = subprocess.run(command("-X", "importtime"), env=environment(words, **env), **pipes)
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert said == []
    assert "| torch" not in done.stderr
    return done.stdout.split()


def offered(words):
    """Return what is offered, without the time that an interpreter takes to start."""
    done = forked.run(command(), env=environment(words))
    assert done.stderr == ""
    return done.stdout.split()


def test_commands():
    assert {"run", "report", "validate", "plugins"} <= set(complete(""))
    assert "report" in complete("re")
    assert complete("plugins d") == ["doctor"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("run --cache ", ["cold", "warm"]),
        ("run --cache=w", ["warm"]),
        ("run --tolerance ", ["dtype", "fixed"]),
        ("run --trust ", ["full", "off"]),
        ("run --sandbox ", ["auto", "off", "strict"]),
        ("run --device c", ["cpu", "cuda"]),
        ("run --executor s", ["spawn"]),
        ("run --stop-rule f", ["fixed"]),
        ("run --log-level D", ["DEBUG"]),
        ("validate --outputs html j", ["json"]),
        ("validate --checks lay", ["layout"]),
        ("plugins list --kind ", sorted(KINDS)),
        ("plugins show flashinfer-b", ["flashinfer-bench-core"]),
        ("plugins doctor cor", ["core"]),
    ],
)
def test_allowed_values_and_what_is_registered(words, names):
    assert sorted(offered(words)) == names


def test_names_in_the_dataset(maker):
    maker.sound()
    maker.definition("dot")
    root = maker.root
    assert offered(f"run --local {root} --definitions d") == ["dot", "double"]
    assert offered(f"run {root} --definitions dot d") == ["dot", "double"]
    assert offered(f"run {root} --definitions dot --c") == ["--cache", "--config"]
    assert offered(f"run --local {root} --solution al") == ["alice_double"]
    assert offered(f"run --local {root} --author al") == ["alice"]
    assert offered(f"run --local {root} --op-type o") == ["op"]
    uuids = offered(f"run --local {root} --definition double --workload ")
    lines = (root / "workloads/op/double.jsonl").read_text().splitlines()
    assert uuids == sorted(json.loads(line)["workload"]["uuid"] for line in lines)
    assert offered(f"run --local {root} --definition dot --workload ") == []
    assert offered(f"run --local {root}/nowhere --definitions d") == []


@pytest.mark.parametrize("strict", ["0", "1"])
def test_broken_plugins_are_silent(tmp_path, strict):
    (tmp_path / "sundials.py").write_text(PLUGIN)
    env = {
        "FIB_PLUGINS": "sundials,missing_module",
        "PYTHONPATH": str(tmp_path),
        "FIB_STRICT_PLUGINS": strict,
    }
    assert complete("plugins show sun", **env) == ["sundial", "sundials"]
    # Strict, the command does not even start.
    assert ("sundial" in complete("run --timer ", **env)) == (strict == "0")
    assert "broken" in complete("", **env)
    assert complete("broken ", **env) == []
