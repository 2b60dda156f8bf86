"""Errors become messages and exit codes in one place; usage: ``tests/test_mistakes.py``."""

from __future__ import annotations

import errno
import inspect

import pytest
import typer

from flashinfer_bench import errors, validate
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.main import explain, report_failure


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
    assert explain(exc)[0] == code


def test_no_error_of_ours_counts_as_internal():
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.FibError) and kind is not errors.FibError
    ]
    assert len(kinds) > 15
    for kind in kinds:
        assert explain(kind("x"))[0] != ExitCode.INTERNAL, kind


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


# ------------------------------------------------------------- in a dataset, or in `fib` itself


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Nothing may be written into the working folder by an error."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.plugin("report")
def test_broken_lines_are_named_and_summed_up_and_spare_the_rest(fib, maker):
    maker.sound()
    maker.raw("definitions/op/broken.json", '{\n  "name": "x",\n  oops\n}')
    with (maker.root / "traces/op/double.jsonl").open("a") as file:
        file.writelines("{'single': 'quotes'}\n" for _ in range(49))
    result = fib("report", "best", "--local", maker.root)
    assert result.exit_code == 1
    assert f"{maker.root}/definitions/op/broken.json:3: not valid JSON" in result.stderr
    assert f"{maker.root}/traces/op/double.jsonl:5: not valid JSON" in result.stderr
    assert result.stderr.count("not valid JSON") == 10
    assert "40 more" in result.stderr
    assert "fib validate" in result.stderr
    assert "alice" in result.stdout


def test_ctrl_c_ends_quietly(fib, maker, monkeypatch):
    def interrupted(root, *options, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(validate, "validate_dataset", interrupted)
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_a_bug_is_told_shortly(fib, maker, monkeypatch):
    monkeypatch.setattr(validate, "validate_dataset", lambda *args, **more: 1 / 0)
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 3
    assert "internal error: ZeroDivisionError" in result.stderr
    assert "Traceback" not in result.output
    debugging = fib("validate", "--local", maker.root, "--log-level", "DEBUG")
    assert debugging.exit_code == 3
    assert "Traceback" in debugging.stderr
