"""The root command: help, version, unknown commands, plugin commands, completion, start-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench import __version__
from flashinfer_bench.plugins.builtin import fib_register_commands

FORBIDDEN = ("torch", "pydantic", "numpy", "rich", "pluggy", "importlib.metadata", "msgspec")

CORE = {spec.name: spec.summary for spec in fib_register_commands()}

PLUGIN = """
import typer
from flashinfer_bench.plugins import CommandSpec, hookimpl

@hookimpl
def fib_register_commands():
    yield CommandSpec(name="greet", factory="greeter:app", summary="Say hello.")
    yield CommandSpec(name="shout", factory="greeter:shout", summary="Say it loudly.")
    yield CommandSpec(name="broken", factory="greeter_that_is_not_there:app", summary="Fail.")
    yield CommandSpec(name="report loudly", factory="greeter:shout", summary="Report loudly.")
    yield CommandSpec(name="plugins list", factory="greeter:shout", summary="Steal a name.")
    yield CommandSpec(name="validate quietly", factory="greeter:shout", summary="Not in a group.")
    yield CommandSpec(name="early", factory="greeter:shout", priority=995, summary="Be second.")

def shout(word: str = "hello") -> None:
    typer.echo(word.upper())

app = typer.Typer()

@app.command()
def greet(name: str = "world") -> None:
    typer.echo(f"hello {name}")
"""


@pytest.fixture
def with_plugin(tmp_path):
    """Environment in which a module is loaded as a plugin that adds commands."""
    (tmp_path / "greeter.py").write_text(PLUGIN)
    return {"FIB_PLUGINS": "greeter", "PYTHONPATH": str(tmp_path)}


def loaded_by(*args, env=None):
    """Return the modules that a command line loads."""
    code = (
        "import sys, json\n"
        "from flashinfer_bench.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args],  # sys.argv[0] is then "-c"
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(env or {})},
    )
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy_and_discover_no_plugin(args, with_plugin):
    loaded_by(*args, env=with_plugin)
    out, modules = loaded_by(*args, env=with_plugin)
    assert ("Say hello." in out) == (args != ["--version"])
    assert "greeter" not in modules
    assert not {name for name in FORBIDDEN if name in modules}
    assert not {name for name in modules if name.startswith("flashinfer_bench.plugins")}


@pytest.mark.parametrize("command", [["run"], ["validate"], ["plugins", "list"]])
def test_help_of_a_command_loads_only_that(command):
    loaded_by("--help")
    out, modules = loaded_by(*command, "--help")
    assert "Usage:" in out
    assert not {"torch", "numpy", "rich", "flashinfer_bench.data"} & modules
    commands = {"run", "report", "validate", "plugins"} - {*command[:1]}
    assert not {f"flashinfer_bench.cli.{name}" for name in commands} & modules


def test_help_lists_every_command(fib):
    result = fib("--help")
    assert result.exit_code == 0
    for name, summary in CORE.items():
        assert name in result.stdout
        assert summary in " ".join(result.stdout.split())
    assert "Exit codes" in result.stdout


def test_version_and_nothing_asked(fib):
    result = fib("--version")
    assert (result.exit_code, result.stdout) == (0, f"flashinfer-bench {__version__}\n")
    result = fib()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr


# ------------------------------------------------------------------------------------ plugins


def test_plugins_add_commands(fib_process, with_plugin):
    for command, shown in (("greet --name you", "hello you\n"), ("shout --word hey", "HEY\n")):
        done = fib_process(*command.split(), env=with_plugin)
        assert (done.returncode, done.stdout) == (0, shown), done.stderr
    shown = fib_process("greet", "--help", env=with_plugin).stdout
    assert "--name" in shown
    assert "completion" not in shown  # the root offers that, once
    done = fib_process("gret", env=with_plugin)
    assert done.returncode == 2
    assert "Did you mean 'greet'" in done.stderr


def test_a_broken_plugin_breaks_its_own_command_only(fib_process, with_plugin):
    done = fib_process("broken", env=with_plugin)
    assert done.returncode == 4
    assert "greeter_that_is_not_there" in done.stderr
    assert fib_process("greet", env=with_plugin).returncode == 0
    assert fib_process("--help", env=with_plugin).returncode == 0


def listed(done):
    """Return the names under the heading "Commands" of a help text."""
    lines = done.stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if line[2:3] != " "]


def test_help_lists_the_commands_of_plugins_by_priority_then_name(fib_process, with_plugin):
    names = listed(fib_process("--help", env=with_plugin))
    assert names[:2] == ["run", "early"]
    assert names[-3:] == ["broken", "greet", "shout"]
    assert [name for name in names if name in CORE] == list(CORE)


def test_plugins_add_subcommands_to_groups(fib_process, with_plugin):
    assert "Report loudly." in fib_process("report", "--help", env=with_plugin).stdout
    assert fib_process("report", "loudly", env=with_plugin).stdout == "HELLO\n"
    done = fib_process("plugins", "--help", env=with_plugin)
    assert "Steal a name." not in done.stdout
    assert "'plugins list' of greeter is refused: 'plugins' already has a command" in done.stderr
    assert "--json" in fib_process("plugins", "list", "--help", env=with_plugin).stdout
    done = fib_process("validate", "--help", env=with_plugin)
    assert done.returncode == 0
    assert "'validate quietly' of greeter is refused: 'validate' has no sub" in done.stderr


def test_a_command_of_core_is_never_replaced(fib_process, tmp_path):
    thief = PLUGIN.replace('name="greet"', 'name="run"').replace('"greeter:', '"thief:')
    (tmp_path / "thief.py").write_text(thief)
    env = {"FIB_PLUGINS": "thief", "PYTHONPATH": str(tmp_path), "FIB_STRICT_PLUGINS": "0"}
    done = fib_process("run", "--help", env=env)
    assert "--num-trials" in done.stdout
    done = fib_process("--help", env=env)
    assert listed(done).count("run") == 1
    assert "thief registers command 'run'; refused, because core has a command" in done.stderr


def test_what_is_removed_or_changed_does_not_linger(fib_process, with_plugin, tmp_path):
    assert "greet" in listed(fib_process("--help", env=with_plugin))
    assert "greet" not in listed(fib_process("--help"))
    assert "greet" not in listed(
        fib_process("--help", env={**with_plugin, "FIB_DISABLE_PLUGINS": "greeter"})
    )
    module = tmp_path / "greeter.py"
    module.write_text(PLUGIN.replace('name="greet"', 'name="salute"'))
    assert "greet" not in listed(fib_process("--help", env=with_plugin))
    assert fib_process("salute", env=with_plugin).stdout == "hello world\n"
    module.unlink()
    done = fib_process("--help", env=with_plugin)
    assert listed(done) == [name for name in listed(done) if name != "salute"]
    module.write_text(PLUGIN)
    assert "greet" in listed(fib_process("--help", env=with_plugin))


@pytest.mark.parametrize("damage", ["{", "[" * 100_000])
def test_a_damaged_cache_is_written_anew(fib_process, with_plugin, tmp_path, damage):
    fib_process("--help", env=with_plugin)
    (path,) = (tmp_path / "cache").glob("commands-*.json")
    sound = path.read_text()
    path.write_text(damage)
    assert "greet" in listed(fib_process("--help", env=with_plugin))
    assert path.read_text() == sound


def test_a_reader_that_goes_away_is_no_error(maker):
    maker.sound()
    for index in range(3000):
        maker.raw(f"solutions/alice/op/double/solution_{index:05d}_that_is_broken.json", "broken")
    command = [sys.executable, "-m", "flashinfer_bench", "validate", maker.root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 141
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


def report_best(maker, *shell, **streams):
    command = [sys.executable, "-m", "flashinfer_bench", "report", "best", "--local"]
    root = str(maker.sound().root)
    return subprocess.run([*shell, *command, root], text=True, check=False, **streams)


@pytest.mark.plugin("report")
@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_error(maker, closed):
    done = report_best(maker, "sh", "-c", f'exec "$@" {closed}>&-', "sh", capture_output=True)
    assert done.returncode == 0
    assert ("definition\t" in done.stdout) == (closed == 2)
    assert "error" not in done.stderr


@pytest.mark.plugin("report")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_an_output_that_is_full_is_no_bug(maker):
    with Path("/dev/full").open("w") as full:
        done = report_best(maker, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 4
    assert "error: cannot write the output" in done.stderr
    assert "internal error" not in done.stderr
