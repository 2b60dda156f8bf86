"""Errors become messages and exit codes in one place."""

from __future__ import annotations

import inspect

import pytest
import typer

from flashinfer_bench import errors
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.failures import exit_code_of, report_failure


def test_the_codes_are_those_that_are_documented():
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FINDINGS": 1,
        "USAGE": 2,
        "INTERNAL": 3,
        "CAPABILITY": 4,
        "NOTHING_SELECTED": 5,
        "AMBIGUOUS": 6,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
    }


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.SelectionError("x"), 5),
        (errors.SelectionError("x", unknown=("a",)), 2),
        (errors.UnknownNameError("x", unknown=("a",)), 2),
        (errors.CapabilityError("x"), 4),
        (errors.DataError("x"), 1),
        (errors.DuplicateNameError("x"), 1),
        (errors.ConflictError("x"), 1),
        (errors.UnsafePathError("x"), 1),
        (errors.BlobError("x"), 1),
        (errors.DatasetNotFoundError("x"), 2),
        (errors.StorageError("x"), 4),
        (errors.PluginLoadError("x"), 4),
        (errors.PluginConflictError("x"), 4),
        (errors.BuildError("x"), 1),
        (errors.TimingError("x"), 4),
        (errors.RunnerError("x"), 4),
        (errors.RunnerFatalError("x"), 4),
        (errors.ProtocolError("x"), 4),
        (typer.BadParameter("x"), 2),
        (typer.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (ValueError("x"), 3),
        (OSError("x"), 3),
    ],
)
def test_codes(exc, code):
    assert exit_code_of(exc) == code


def test_no_error_of_ours_counts_as_internal():
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.FibError) and kind is not errors.FibError
    ]
    assert len(kinds) > 15
    for kind in kinds:
        made = kind("x", **({"stage": "call"} if kind.__name__.startswith("Candidate") else {}))
        assert exit_code_of(made) != ExitCode.INTERNAL, kind


def test_message_and_hint(capsys):
    code = report_failure(errors.CapabilityError("no such device", hint="use --device cpu"))
    assert code == 4
    assert capsys.readouterr().err == "error: no such device\nhint: use --device cpu\n"


def test_the_place_of_bad_data(capsys):
    report_failure(errors.DataError("is wrong", path="a.json", line=3, field="name"))
    assert capsys.readouterr().err == "error: a.json:3: name: is wrong\n"


def test_an_internal_error_is_short_and_says_what_to_do(capsys):
    report_failure(ZeroDivisionError("division by zero"))
    shown = capsys.readouterr().err
    assert shown.startswith("error: internal error: ZeroDivisionError: division by zero\nhint: ")
    assert "Traceback" not in shown
    assert "FIB_TRACEBACK=1" in shown


def raised(exc):
    try:
        raise exc
    except Exception as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize("exc", [ZeroDivisionError("x"), errors.ConfigError("x")])
def test_tracebacks_on_request(capsys, monkeypatch, exc):
    monkeypatch.setenv("FIB_TRACEBACK", "1")
    report_failure(raised(exc))
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_tracebacks_when_debugging(capsys, caplog):
    caplog.set_level("DEBUG", "flashinfer_bench")
    report_failure(raised(errors.ConfigError("x")))
    assert "Traceback" in capsys.readouterr().err


def test_a_malformed_variable_does_not_hide_the_error(capsys, monkeypatch):
    monkeypatch.setenv("FIB_TRACEBACK", "maybe")
    assert report_failure(raised(errors.ConfigError("the error"))) == 2
    assert "the error" in capsys.readouterr().err


def test_escape_sequences_in_messages_are_spelt_out(capsys):
    report_failure(errors.DataError("name '\x1b[2J' is taken"))
    assert "\x1b" not in capsys.readouterr().err
