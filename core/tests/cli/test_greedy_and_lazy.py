"""Options with several values, the lazy table of commands, and logging."""

from __future__ import annotations

import logging
from typing import Annotated, ClassVar, Optional

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flashinfer_bench.cli.greedy import GreedyCommand, spread_values
from flashinfer_bench.cli.lazy_group import LazyCommand, LazyGroup, as_command, near_matches
from flashinfer_bench.cli.logs import StderrHandler, set_up_logging
from flashinfer_bench.errors import ConfigError

# ----------------------------------------------------------------------- several values a flag


@pytest.mark.parametrize(
    ("given_args", "spread"),
    [
        ("", ""),
        ("--d a", "--d a"),
        ("--d a b c", "--d a --d b --d c"),
        ("--d a b --s x y", "--d a --d b --s x --s y"),
        ("--d a --d b", "--d a --d b"),
        ("--d=a b", "--d=a --d b"),
        ("--d a b --n 3", "--d a --d b --n 3"),
        ("--n 3 --d a b --flag", "--n 3 --d a --d b --flag"),
        ("--flag stray", "--flag stray"),
        ("--n 3 stray", "--n 3 stray"),
        ("--d a - b", "--d a --d - --d b"),
        ("--d a -- b c", "--d a -- b c"),
        ("--d", "--d"),
        ("--d --s a", "--d --s a"),
    ],
)
def test_values_get_their_flag(given_args, spread):
    assert spread_values(given_args.split(), {"--d", "--s"}) == spread.split()


@given(st.lists(st.sampled_from(["--d", "--n", "-f", "--d=v", "v", "w", "--", "-"]), max_size=12))
def test_nothing_is_lost_and_spreading_again_changes_nothing(args):
    spread = spread_values(args, {"--d"})
    assert [arg for arg in spread if arg != "--d"] == [arg for arg in args if arg != "--d"]
    assert spread_values(spread, {"--d"}) == spread


Names = Annotated[Optional[list[str]], typer.Option("--name", "--names")]


def greedy_app():
    app = typer.Typer()

    @app.command(cls=GreedyCommand)
    def show(names: Names = None, count: int = 0) -> None:
        typer.echo(f"{list(names or [])} {count}")

    return app


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ("--name a b --count 3", "['a', 'b'] 3"),
        ("--names a --count 3 --name b c", "['a', 'b', 'c'] 3"),
        ("--count 3", "[] 3"),
    ],
)
def test_a_command_takes_several_values(args, shown):
    assert CliRunner().invoke(greedy_app(), args.split()).stdout == f"{shown}\n"


def test_a_value_after_an_option_with_one_value_is_still_refused():
    assert CliRunner().invoke(greedy_app(), ["--count", "3", "stray"]).exit_code == 2


# --------------------------------------------------------------------------------- lazy group

LOADED = []


def hello(name: str = "you") -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


sub_app = typer.Typer(help="Two commands.")
sub_app.command("one")(lambda: typer.echo("1"))
sub_app.command("two")(lambda: typer.echo("2"))


class Group(LazyGroup):
    table: ClassVar = {
        "hello": LazyCommand(f"{__name__}:hello", "Say hello to someone."),
        "numbers": LazyCommand(f"{__name__}:sub_app", "Say numbers."),
        "absent": LazyCommand("flashinfer_bench.no_such_module:x", "Cannot be loaded."),
    }

    def plugin_commands(self):
        return {"extra": lambda: LOADED.append("extra") or hello}


@pytest.fixture
def group():
    LOADED.clear()
    app = typer.Typer(cls=Group, rich_markup_mode=None)
    app.callback()(lambda: None)
    return lambda *args: CliRunner().invoke(app, list(args))


def test_listing_loads_nothing(group):
    result = group("--help")
    assert result.exit_code == 0
    assert "Say hello to someone." in result.output
    assert "Cannot be loaded." in result.output
    assert LOADED == []


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["hello"], "hello you\n"),
        (["hello", "--name", "x"], "hello x\n"),
        (["numbers", "two"], "2\n"),
        (["extra"], "hello you\n"),
    ],
)
def test_commands_are_loaded_when_they_are_named(group, args, shown):
    assert group(*args).output == shown


def test_help_of_a_loaded_command_is_its_own(group):
    assert "Two commands." in group("numbers", "--help").output
    assert "--name" in group("hello", "--help").output
    assert "completion" not in group("hello", "--help").output


def test_plugins_are_asked_only_for_what_the_table_lacks(group):
    group("hello")
    assert LOADED == []
    group("extra")
    assert LOADED == ["extra"]


def test_a_command_that_cannot_be_imported_says_so(group):
    assert isinstance(group("absent").exception, ModuleNotFoundError)


def test_unknown_commands(group):
    result = group("helo")
    assert result.exit_code == 2
    assert "there is no command 'helo'. Did you mean 'hello'?" in result.output


def test_an_application_keeps_its_own_help():
    assert as_command(sub_app, "n", "summary").help == "Two commands."
    assert as_command(typer.Typer(callback=lambda: None), "n", "summary").name == "n"


def test_near_matches():
    assert near_matches("rn", ["run", "report"]) == " Did you mean 'run'?"
    assert near_matches("xyz", ["run"]) == ""


# ------------------------------------------------------------------------------------ logging


def test_log_records_go_to_whatever_stderr_is(capsys):
    set_up_logging("INFO")
    logging.getLogger("flashinfer_bench.x").info("told \x1b[31m\nsecond line")
    assert capsys.readouterr().err == "INFO flashinfer_bench.x: told \\x1b[31m\nsecond line\n"


def test_the_level_holds_for_our_loggers_only(capsys):
    set_up_logging("DEBUG")
    logging.getLogger("somebody.else").info("chatter")
    logging.getLogger("flashinfer_bench.x").debug("detail")
    assert capsys.readouterr().err == "DEBUG flashinfer_bench.x: detail\n"


def test_setting_up_twice_does_not_say_things_twice(capsys):
    set_up_logging("INFO")
    set_up_logging("WARNING")
    logging.getLogger("flashinfer_bench.x").warning("once")
    logging.getLogger("flashinfer_bench.x").info("not at all")
    assert capsys.readouterr().err.count("\n") == 1
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, StderrHandler)]
    assert len(handlers) == 1


def test_where_the_level_comes_from(monkeypatch):
    assert set_up_logging() == "WARNING"
    assert set_up_logging(default="INFO") == "INFO"
    monkeypatch.setenv("FIB_LOG_LEVEL", "error")
    assert set_up_logging(default="INFO") == "ERROR"
    assert set_up_logging("debug") == "DEBUG"


@pytest.mark.parametrize("level", ["LOUD", "10", " "])
def test_unknown_levels(level):
    with pytest.raises(ConfigError, match="no log level"):
        set_up_logging(level)
