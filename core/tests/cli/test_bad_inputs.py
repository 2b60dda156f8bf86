"""Each bad input has a clear error and its documented exit code, whatever the command."""

from __future__ import annotations

import pytest

READERS = (pytest.param(["report", "best"], marks=pytest.mark.plugin("report")), ["validate"])
ALL = (*READERS, ["run", "--device", "cpu"])
NAMES = ("report best", "validate", "run")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Nothing may be written into the working folder by an error."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.parametrize("command", ALL, ids=NAMES)
def test_what_is_no_dataset(fib, tmp_path, command):
    missing, file, empty = (tmp_path / name for name in ("mistyped", "file", "empty"))
    file.write_text("{}")
    empty.mkdir()
    result = fib(*command, "--local", missing)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: no dataset: {missing} does not exist" in result.stderr
    assert "hint:" in result.stderr
    assert not missing.exists()
    result = fib(*command)
    assert result.exit_code == 2
    assert "FIB_DATASET_PATH" in result.stderr
    result = fib(*command, "--local", file)
    assert result.exit_code == 2
    assert "is not a folder" in result.stderr
    result = fib(*command, "--local", empty)
    assert (result.exit_code, result.stdout) == (5, "")
    assert "there is nothing in the dataset" in result.stderr
    assert list(empty.iterdir()) == []
    more = ("--no-save-results",) if command[0] == "run" else ()
    result = fib(*command, "--hub", "nowhere://x", *more)
    assert result.exit_code == 4
    assert "nowhere" in result.stderr


@pytest.mark.parametrize("flags", [["--save-results"], ["--local", "."]])
def test_traces_are_not_written_into_a_shared_cache(fib, flags):
    result = fib("run", "--hub", "somebody/traces", *flags)
    assert result.exit_code == 2
    assert "--no-save-results" in result.stderr


@pytest.mark.plugin("report")
def test_malformed_json_names_file_and_line_and_spares_the_rest(fib, maker):
    maker.sound()
    maker.raw("definitions/op/broken.json", '{\n  "name": "x",\n  oops\n}')
    with (maker.root / "traces/op/double.jsonl").open("a") as file:
        file.write("{'single': 'quotes'}\n")
    result = fib("report", "best", "--local", maker.root)
    assert result.exit_code == 1
    assert f"{maker.root}/definitions/op/broken.json:3: not valid JSON" in result.stderr
    assert f"{maker.root}/traces/op/double.jsonl:5: not valid JSON" in result.stderr
    assert "alice" in result.stdout


@pytest.mark.plugin("report")
def test_many_broken_lines_are_summed_up(fib, maker):
    maker.sound()
    with (maker.root / "traces/op/double.jsonl").open("a") as file:
        file.writelines("broken\n" for _ in range(50))
    result = fib("report", "best", "--local", maker.root)
    assert result.exit_code == 1
    assert result.stderr.count("not valid JSON") == 10
    assert "40 more" in result.stderr
    assert "fib validate" in result.stderr


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (["--definitions", "dubble"], ["'dubble'", "double"]),
        (["--solutions", "alice_duble"], ["alice_double"]),
        (["--op-type", "opp"], ["'opp'"]),
    ],
)
@pytest.mark.parametrize("command", [ALL[0], ALL[2]], ids=lambda c: " ".join(c[:2]))
def test_unknown_names_in_a_filter(fib, maker, command, filters, words):
    result = fib(*command, "--local", maker.sound().root, *filters)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--atol", "nan"], "atol"),
        (["--device", "tpu0!"], "device"),
        (["--log-level", "LOUD"], "LOUD"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--config", __file__], "test_bad_inputs.py"),
    ],
)
def test_values_out_of_range(fib, maker, args, words):
    result = fib("run", "--local", maker.sound().root, *args)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_traces_that_cannot_be_written_are_told_of_before_the_run(fib, maker):
    maker.sound()
    (maker.root / "traces").rename(maker.root / "elsewhere")
    (maker.root / "traces").write_text("")
    result = fib("run", "--local", maker.root, "--device", "cpu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{maker.root}/traces is not a folder that may be written to" in result.stderr
    assert "--no-save-results" in result.stderr


def test_ctrl_c_ends_quietly(fib, maker, monkeypatch):
    import flashinfer_bench.validate as package

    def interrupted(root, *options, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "validate_dataset", interrupted)
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_a_bug_is_told_shortly(fib, maker, monkeypatch):
    import flashinfer_bench.validate as package

    monkeypatch.setattr(package, "validate_dataset", lambda *args, **more: 1 / 0)
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 3
    assert "internal error: ZeroDivisionError" in result.stderr
    assert "Traceback" not in result.output
    debugging = fib("validate", "--local", maker.root, "--log-level", "DEBUG")
    assert debugging.exit_code == 3
    assert "Traceback" in debugging.stderr
