"""``fib run``: the options of timing, as they reach the settings of a run."""

from __future__ import annotations

import pytest

from flashinfer_bench.cli import run as run_command

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
        (["--stop-param", "target"], "'target' is not of the form KEY=VALUE", "for example"),
        (["--stop-param", "a=1", "a=2"], "--stop-param a is given twice", None),
        (["--max-timing-seconds", "0"], "max_seconds: Input should be greater than 0", None),
        (["--cache", "hot"], "cache: Input should be 'cold' or 'warm'", None),
    ],
)
def test_usage_errors(fib, maker, options, message, hint):
    result = fib("run", "--local", maker.root, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    if hint:
        assert hint in result.stderr
