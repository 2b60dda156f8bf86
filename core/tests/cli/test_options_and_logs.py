"""Options with several values, and log lines."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.cli.options import spread_values
from flashinfer_bench.cli.output import StderrHandler, set_up_logging
from flashinfer_bench.errors import ConfigError

# ----------------------------------------------------------------------- several values a flag


@pytest.mark.parametrize(
    ("given_args", "spread"),
    [
        ("", ""),
        ("--d a", "--d a"),
        ("--d a b c", "--d a --d b --d c"),
        ("--d a b --s x y", "--d a --d b --s x --s y"),
        ("--d=a b", "--d=a --d b"),
        ("--n 3 --d a b --flag", "--n 3 --d a --d b --flag"),
        ("--n 3 stray", "--n 3 stray"),
        ("--d a - b", "--d a --d - --d b"),
        ("--d a -- b c", "--d a -- b c"),
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
    with pytest.raises(ConfigError, match="unknown log level"):
        set_up_logging(level)
