"""The root command: help, version, unknown commands, plugin commands, completion, start-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench import __version__
from flashinfer_bench.cli.main import COMMANDS, app

FORBIDDEN = ("torch", "pydantic", "numpy", "rich", "pluggy", "importlib.metadata", "msgspec")

PLUGIN = """
import typer
from flashinfer_bench.plugins import CommandSpec, hookimpl

@hookimpl
def fib_register_commands():
    yield CommandSpec(name="greet", factory="greeter:app", summary="Say hello.")
    yield CommandSpec(name="shout", factory="greeter:shout", summary="Say it loudly.")
    yield CommandSpec(name="broken", factory="greeter_that_is_not_there:app", summary="Fail.")

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


# ----------------------------------------------------------------------------------- start-up


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--version"]])
def test_help_and_version_import_nothing_heavy_and_discover_no_plugin(args):
    _, modules = loaded_by(*args)
    assert not {name for name in FORBIDDEN if name in modules}
    assert not {name for name in modules if name.startswith("flashinfer_bench.plugins")}


@pytest.mark.parametrize("command", [["run"], ["report", "best"], ["validate"], []])
def test_help_of_a_command_loads_only_that(command):
    out, modules = loaded_by(*command, "--help")
    assert "Usage:" in out
    assert not {"torch", "numpy", "rich", "flashinfer_bench.data"} & modules
    commands = {"run", "report", "validate", "plugins"} - {*command[:1]}
    assert not {f"flashinfer_bench.cli.{name}" for name in commands} & modules


def test_completing_a_command_loads_none():
    env = {"_FIB_COMPLETE": "complete_bash", "COMP_WORDS": "fib ", "COMP_CWORD": "1"}
    _, modules = loaded_by(env=env)
    assert not {"torch", "numpy", "flashinfer_bench.data", "flashinfer_bench.cli.run"} & modules


def test_importing_the_package_is_light():
    code = "import sys, flashinfer_bench; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(FORBIDDEN) & set(done.stdout.split())


# ------------------------------------------------------------------------------ help, version


def test_help_lists_every_command(fib):
    result = fib("--help")
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert name in result.stdout
        assert entry.summary in " ".join(result.stdout.split())
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(fib, flag):
    result = fib(flag)
    assert (result.exit_code, result.stdout) == (0, f"flashinfer-bench {__version__}\n")


def test_nothing_asked_shows_help_and_is_a_usage_error(fib):
    result = fib()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage:" in result.stderr


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_table_can_be_loaded(fib, name):
    result = fib(name, "--help")
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.stdout


def test_both_programs_and_the_module_are_the_same(fib_process):
    from importlib.metadata import entry_points

    scripts = {e.name: e.value for e in entry_points(group="console_scripts")}
    assert scripts["fib"] == scripts["flashinfer-bench"] == "flashinfer_bench.cli.main:main"
    assert fib_process("--version").stdout == f"flashinfer-bench {__version__}\n"


# ----------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["rport"], "no command 'rport'. Did you mean 'report'"),
        (["xyzzy"], "no command 'xyzzy'."),
        (["report", "bst"], "No such command 'bst'. Did you mean 'best'?"),
        (["report", "best", "--lcal", "x"], "No such option: --lcal"),
        (["--nope"], "No such option: --nope"),
        (["run", "--iterations", "many"], "Invalid value for '--iterations'"),
        (["validate", "--log-level"], "requires an argument"),
        (["run", "stray"], "unexpected extra argument"),
    ],
)
def test_mistakes_in_the_command_line(fib, args, words):
    result = fib(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "name", ["FIB_NO_PLUGINS", "FIB_STRICT_PLUGINS", "FIB_TRACEBACK", "FIB_CPU_THREADS"]
)
def test_malformed_variables_are_usage_errors(fib, monkeypatch, maker, name):
    monkeypatch.setenv(name, "perhaps")
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 2
    assert f"{name}='perhaps'" in result.stderr
    assert fib("--help").exit_code == 0


def test_an_unknown_log_level(fib, maker):
    result = fib("validate", "--local", maker.sound().root, "--log-level", "LOUD")
    assert result.exit_code == 2
    assert "'LOUD'" in result.stderr
    assert "DEBUG" in result.stderr


# ------------------------------------------------------------------------------------ plugins


@pytest.mark.parametrize(
    ("args", "out"),
    [
        (["greet"], "hello world\n"),
        (["greet", "--name", "you"], "hello you\n"),
        (["shout", "--word", "hey"], "HEY\n"),
    ],
)
def test_plugins_add_commands(fib_process, with_plugin, args, out):
    done = fib_process(*args, env=with_plugin)
    assert (done.returncode, done.stdout) == (0, out), done.stderr


def test_commands_of_plugins_offer_no_second_completion(fib_process, with_plugin):
    done = fib_process("greet", "--help", env=with_plugin)
    assert done.returncode == 0
    assert "--name" in done.stdout
    assert "completion" not in done.stdout


def test_commands_of_plugins_are_proposed_too(fib_process, with_plugin):
    done = fib_process("gret", env=with_plugin)
    assert done.returncode == 2
    assert "Did you mean 'greet'" in done.stderr


def test_a_broken_plugin_breaks_its_own_command_only(fib_process, with_plugin):
    done = fib_process("broken", env=with_plugin)
    assert done.returncode == 4
    assert "greeter_that_is_not_there" in done.stderr
    assert fib_process("greet", env=with_plugin).returncode == 0
    assert fib_process("--help", env=with_plugin).returncode == 0


# --------------------------------------------------------------------------------- completion


def complete(words):
    line = f"fib {words}"
    env = {
        "_FIB_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    code = "from typer.main import get_command; from flashinfer_bench.cli.main import app; "
    code += "get_command(app).main(prog_name='fib')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_of_commands():
    assert complete("") == list(COMMANDS)
    assert complete("re") == ["replay", "report"]
    reports = ["summary", "best", "scores", "coverage", "regressions", "merge", "visualize"]
    assert complete("report ") == reports


def test_completion_of_options():
    assert "--num-trials" in complete("run --num")
    assert complete("validate --str") == ["--strict"]


def test_completion_of_names(maker):
    maker.sound()
    maker.definition("dot")
    root = maker.root
    assert complete(f"run --local {root} --definitions d") == ["dot", "double"]
    assert complete(f"report best --local {root} --solution al") == ["alice_double"]
    assert complete(f"run --local {root}/nowhere --definitions d") == []


def test_completion_after_an_unknown_command_discovers_no_plugin():
    _, modules = loaded_by(
        env={"_FIB_COMPLETE": "complete_bash", "COMP_WORDS": "fib xyz --", "COMP_CWORD": "2"}
    )
    assert "pluggy" not in modules


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(shell):
    code = "from typer.main import get_command; from flashinfer_bench.cli.main import app; "
    code += f"get_command(app).main(['--show-completion', '{shell}'], prog_name='fib')"
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "_FIB_COMPLETE=complete_" in done.stdout


# ---------------------------------------------------------------------------------- the pipe


def test_a_reader_that_goes_away_is_no_error(maker):
    maker.sound()
    for index in range(3000):
        maker.definition(f"definition_{index:05d}_with_a_rather_long_name_to_fill_the_pipe")
    command = [sys.executable, "-m", "flashinfer_bench", "report", "summary", "--local", maker.root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 141
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_error(maker, closed):
    command = [sys.executable, "-m", "flashinfer_bench", "report", "summary", "--local"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command, str(maker.sound().root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert ("definition\t" in done.stdout) == (closed == 2)
    assert "error" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_an_output_that_is_full_is_no_bug(maker):
    command = [sys.executable, "-m", "flashinfer_bench", "report", "summary", "--local"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, str(maker.sound().root)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 4
    assert "error: cannot write the output" in done.stderr
    assert "internal error" not in done.stderr


def test_the_app_can_be_embedded():
    from typer.main import get_command

    assert get_command(app).main(["--version"], standalone_mode=False) == 0
