"""Errors become messages and exit codes in one place."""

from __future__ import annotations

import errno
import inspect

import pytest
import typer

from flashinfer_bench import errors
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.main import exit_code_of, report_failure


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.SelectionError("x"), 5),
        (errors.UnknownNameError("x", unknown=("a",)), 2),
        (errors.CapabilityError("x"), 4),
        (errors.ConflictError("x"), 1),
        (errors.DatasetNotFoundError("x"), 2),
        (errors.StorageError("x"), 4),
        (errors.PluginLoadError("x"), 4),
        (errors.BuildError("x"), 1),
        (errors.RunnerFatalError("x"), 4),
        (typer.BadParameter("x"), 2),
        (typer.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (OSError("x"), 3),
        (PermissionError(errno.EACCES, "Permission denied", "/cache"), 4),
        (OSError(errno.EROFS, "Read-only file system", "/cache"), 4),
        (ModuleNotFoundError("No module named 'fcntl'", name="fcntl"), 4),
        (ModuleNotFoundError("No module named 'fcmtl'", name="fcmtl"), 3),
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


def raised(exc):
    try:
        raise exc
    except Exception as caught:  # noqa: BLE001
        return caught


def test_messages(capsys, monkeypatch):
    monkeypatch.setenv("FIB_TRACEBACK", "0")
    assert report_failure(errors.CapabilityError("no such device", hint="use cpu")) == 4
    assert capsys.readouterr().err == "error: no such device\nhint: use cpu\n"
    report_failure(errors.DataError("is \x1b wrong", path="a.json", line=3, field="name"))
    assert capsys.readouterr().err == "error: a.json:3: name: is \\x1b wrong\n"
    report_failure(PermissionError(errno.EACCES, "Permission denied", "/cache/x"))
    denied = capsys.readouterr().err
    assert denied.startswith("error: /cache/x: Permission denied\nhint: change its permissions")
    report_failure(ModuleNotFoundError("No module named 'fcntl'", name="fcntl"))
    assert "this command needs Linux or macOS" in capsys.readouterr().err
    monkeypatch.setenv("FIB_TRACEBACK", "maybe")
    assert report_failure(raised(errors.ConfigError("the error"))) == 2
    assert "the error" in capsys.readouterr().err
