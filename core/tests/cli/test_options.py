"""Options with several values, and how those of ``fib run`` reach the settings of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.cli import run as run_command
from flashinfer_bench.cli.options import spread_values

WITH_RSE = pytest.mark.plugin("judge")


class Captured(Exception):
    """Raised in place of a run."""


@pytest.fixture
def settings(fib, maker, monkeypatch):
    """Return a function that gives the settings to which options lead."""
    taken = []

    def capture(given, **rest):
        taken.append(given)
        raise Captured

    def run(*options):
        taken.clear()
        result = fib("run", "--local", maker.root, *options)
        assert taken, result.stderr
        return taken[0]

    monkeypatch.setattr(run_command, "RunSession", capture)
    return run


def test_nothing_given(settings):
    config = settings()
    assert (config.stop_rule, config.stop_params, config.max_seconds) == ("fixed", {}, None)
    assert (config.cache, config.watch, config.interleave_reference) == ("cold", "auto", True)
    assert config.explicit_fields == {"log_level"} & config.explicit_fields


@WITH_RSE
def test_everything_given(settings):
    config = settings(
        "--stop-rule", "rse", "--stop-param", "target=0.2%", "settled=0", "--min-samples", "40",
        "--max-samples", "500", "--max-timing-seconds", "2.5", "--cache", "warm", "--no-watch",
        "--no-interleave-reference",
    )  # fmt: skip
    assert (config.stop_rule, config.stop_params) == ("rse", {"target": "0.2%", "settled": "0"})
    assert (config.min_samples, config.max_samples, config.max_seconds) == (40, 500, 2.5)
    assert (config.cache, config.watch, config.interleave_reference) == ("warm", "off", False)


@WITH_RSE
def test_options_stand_over_a_file(settings, tmp_path):
    text = (
        "stop_rule: rse\nstop_params: {target: 0.01, settled: 0}\nmax_samples: 70\nwatch: 'off'\n"
    )
    (tmp_path / "c.yaml").write_text(text)
    config = settings("--config", tmp_path / "c.yaml", "--stop-param", "target=0.5")
    assert config.stop_params == {"target": "0.5", "settled": 0}
    assert config.watch == "off"
    config = settings("--config", tmp_path / "c.yaml", "--stop-rule", "fixed", "--watch")
    assert config.watch == "auto"
    assert (config.stop_rule, config.stop_params, config.max_samples) == ("fixed", {}, 70)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--stop-rule", "fixt"], "No stop rule 'fixt'", "Did you mean 'fixed'?"),
        (["--stop-param", "xyz=0.1"], "stop rule 'fixed' has no parameter 'xyz'", "it has none"),
        pytest.param(
            ["--stop-rule", "rse", "--stop-param", "target=2"],
            "target must be a number from 0 to 1 (fraction), not '2'",
            "Relative error of the median to reach.",
            marks=WITH_RSE,
        ),
        (["--stop-param", "a=1", "a=2"], "--stop-param a is given twice", None),
    ],
)
def test_usage_errors(fib, maker, options, message, hint):
    result = fib("run", "--local", maker.root, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    if hint:
        assert hint in result.stderr


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
