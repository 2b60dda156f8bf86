"""``fib build`` and what it leaves: real compilers, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from fib_tests.cli import rows
from fib_tests.plugins import PLUGIN_FOLDER

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler 'cc'"),
]

DOUBLE = """
void run(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = 2 * x[i]; }
"""
BROKEN = "void run(void) { nonsense }\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Processes find the plugin of these tests."""
    monkeypatch.setenv("FIB_PLUGINS", "compiling_plugin")
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN_FOLDER))


@pytest.fixture
def dataset(maker):
    """Two solutions in C, of which one is broken, and one in Python."""
    maker.definition()
    maker.workload()
    add(maker, "good_double")
    add(maker, "broken_double", code=BROKEN)
    maker.solution("python_double")
    return maker


def add(maker, name, *directives, code=DOUBLE):
    source = "".join(f"//! {line}\n" for line in directives) + code
    options = {
        "language": "testc",
        "destination_passing_style": True,
        "target_hardware": ["cpu", "cuda"],
    }
    return maker.solution(name, code=source, **options)


def by_solution(text):
    return {row["solution"]: row for row in rows(text)}


def test_a_table_of_what_came_of_each(fib_process, dataset):
    done = fib_process("build", "--local", dataset.root, "--jobs", "2", "--device", "cpu")
    assert done.returncode == 1
    found = by_solution(done.stdout)
    assert {name: row["result"] for name, row in found.items()} == {
        "good_double": "built",
        "broken_double": "failed",
        "python_double": "built",
    }
    good, broken = found["good_double"], found["broken_double"]
    assert (good["language"], good["builder"], good["detail"]) == ("testc", "testc", "")
    assert float(good["seconds"]) > 0
    assert broken["detail"].startswith("cc failed: main.c:1:")
    assert "3 solutions to build" in done.stderr
    assert "build 3/3: " in done.stderr
    assert ": 2 built, 1 failed" in done.stderr
    assert "---" not in done.stderr
    assert "Traceback" not in done.stderr
    again = fib_process(
        "build", "--local", dataset.root, "--solutions", "good_double", "python_double"
    )
    assert again.returncode == 0
    assert by_solution(again.stdout)["good_double"]["result"] == "cached"


def test_json(fib_process, dataset):
    add(dataset, "no_tool", "capability")
    add(dataset, "no_tool_either", "capability")
    dataset.raw("solutions/unreadable.json", "{")
    done = fib_process("build", "--local", dataset.root, "--compile-only", "--json", "--log")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["schema_version"], document["interrupted"]) == (1, False)
    assert document["left_out"] == ["python_double"]
    found = {build["solution"]: build for build in document["builds"]}
    assert {name: build["result"] for name, build in found.items()} == {
        "good_double": "built",
        "broken_double": "failed",
        "no_tool": "unavailable",
        "no_tool_either": "unavailable",
    }
    assert set(found["good_double"]) == {
        *("definition", "solution", "language", "binding", "builder"),
        *("result", "seconds", "reason", "log"),
    }
    assert found["good_double"]["binding"] is None
    assert "nonsense" in found["broken_double"]["log"]
    assert "hint: install frob" in found["no_tool"]["reason"]
    assert "nonsense" in done.stderr.split("--- broken_double: ")[1]
    assert "left out 1 solutions in languages without a compiler" in done.stderr


@pytest.mark.parametrize(
    ("solutions", "code", "told"),
    [
        (["no_tool", "good"], 4, "unavailable: no_tool: the tool 'frob' was not found\n  hint: "),
        (["mojo", "bad"], 1, "No builder for language 'mojo'"),
    ],
    ids=["a tool", "a builder"],
)
def test_what_is_missing_here(fib_process, maker, solutions, code, told):
    maker.definition()
    add(maker, "no_tool", "capability")
    maker.solution("mojo", language="mojo")
    add(maker, "good")
    add(maker, "bad", code=BROKEN)
    done = fib_process("build", "--local", maker.root, "--compile-only", "--solutions", *solutions)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert by_solution(done.stdout)[solutions[0]]["result"] == "unavailable"


@pytest.mark.plugin("python")
@pytest.mark.skipif(find_spec("fib_sandbox_linux") is None, reason="there is no sandbox")
@pytest.mark.parametrize("without", ["", "linux"])
def test_what_a_solution_does_when_it_is_loaded_is_confined(fib_process, maker, tmp_path, without):
    maker.definition()
    outside = tmp_path / "outside"
    code = f"open({str(outside)!r}, 'w').close()\ndef run(x):\n    return x * 2\n"
    maker.solution("writes", code=code)
    done = fib_process("build", "--local", maker.root, env={"FIB_DISABLE_PLUGINS": without})
    assert "writes" in done.stdout
    assert outside.exists() == bool(without)


def test_ctrl_c_shows_what_is_done(maker, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_SANDBOX_WRITABLE", str(tmp_path))  # for the note
    maker.definition()
    note = tmp_path / "pid"
    add(maker, "good")
    add(maker, "hangs", f"hang {note}")
    command = [sys.executable, "-m", "flashinfer_bench", "build", "--local", str(maker.root)]
    with subprocess.Popen(
        [*command, "--compile-only", "--jobs", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ,
    ) as process:
        try:
            deadline = time.monotonic() + 240
            while not note.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert set(by_solution(out)) == {"good"}
    assert "interrupted after 1 build in" in err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
