"""What is broken in a dataset, or in `fib` itself; mistakes are in ``tests/test_mistakes.py``."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Nothing may be written into the working folder by an error."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert list((tmp_path / "cwd").iterdir()) == []


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
