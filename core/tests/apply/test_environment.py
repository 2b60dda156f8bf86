"""Turning apply on by the environment, in processes of their own; and what importing it costs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from fib_tests.runtime_dataset import sample
from flashinfer_bench import env

PROGRAM = """
import torch
from flashinfer_bench.apply import apply, get_runtime

@apply("double")
def double(x):
    return x * 2

single = apply("double", args=(torch.zeros(2, 4),), fallback=lambda x: x * 2)
print(int(double(torch.zeros(2, 4))[0, 0]), int(single[0, 0]), get_runtime())
"""


def run(program, *options, **variables):
    """Run a program with exactly these variables of ours; return what it wrote, and said."""
    own = {variable.name for variable in env.VARIABLES}
    own |= {"FLASHINFER_TRACE_APPLY", "FLASHINFER_TRACE_APPLY_PATH"}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    variables = {name: str(value) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program)],
        env={**kept, "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


@pytest.fixture
def places(tmp_path):
    """Return variables that keep the user's dataset and cache out."""
    return {"FIB_CACHE_PATH": tmp_path / "cache", "FIB_DATASET_PATH": tmp_path / "none"}


class TestImporting:
    LIGHT = """
        import sys
        {line}
        heavy = {{"torch", "pydantic", "numpy", "msgspec", "pluggy"}} & set(sys.modules)
        assert not heavy, heavy
    """

    @pytest.mark.parametrize(
        "line",
        [
            "import flashinfer_bench.apply",
            "from flashinfer_bench import apply, enable_apply, disable_apply, ApplyConfig",
            "import flashinfer_bench.apply.runtime, flashinfer_bench.apply.hook",
            "from flashinfer_bench import apply; apply('x')(len)([1]); apply('x', (), None, list)",
        ],
    )
    def test_is_light(self, line, places):
        run(self.LIGHT.format(line=line), **places)

    def test_both_names_are_the_same_in_any_order(self, places):
        run(
            """
            from flashinfer_bench import apply
            import flashinfer_bench.apply as module
            import flashinfer_bench
            assert module is apply is flashinfer_bench.apply
            assert apply("x", args=(3,), fallback=lambda x: x + 1) == 4
            """,
            **places,
        )


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.plugin("python")
@pytest.mark.parametrize(
    ("first", "value"),
    [
        ("from flashinfer_bench import disable_apply\ndisable_apply()\n", "yes"),
        ("import flashinfer_bench.cli.main\n", "1"),
        ("", "0"),
    ],
    ids=["disabled by the program", "the command line", "the variable says so"],
)
def test_apply_stays_off(tmp_path, places, first, value):
    places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
    assert run(first + PROGRAM, FIB_ENABLE_APPLY=value, **places) == ("0 0 None", "")


THEIRS = """
import logging
logging.basicConfig(level=logging.INFO)
import torch
from flashinfer_bench.apply import apply, get_runtime

double = apply("double")(lambda x: x * 2)
print(int(double(torch.zeros(2, 4))[0, 0]), get_runtime())
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.plugin("python")
class TestFlashInfersVariables:
    @pytest.fixture
    def folder(self, tmp_path, places):
        """A folder of one solution, and its definition; FlashInfer is hidden, or a fake one."""
        made = sample(tmp_path / "chosen")
        for path in (made.root / "solutions" / "double").iterdir():
            if path.stem != "hundred":
                path.unlink()
        return {**places, "FLASHINFER_TRACE_APPLY_PATH": made.root}

    def flashinfer(self, tmp_path, *, own):
        package = tmp_path / "site" / "flashinfer"
        (package / "trace_apply").mkdir(parents=True) if own else package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise AssertionError('nobody asked for it')")
        return package.parent

    def test_are_heeded_where_flashinfer_does_not(self, tmp_path, folder):
        path = self.flashinfer(tmp_path, own=False)
        out, said = run(THEIRS, FLASHINFER_TRACE_APPLY=1, PYTHONPATH=path, **folder)
        assert out.startswith("100 <MappingRuntime of 1"), said

    def test_are_left_to_a_flashinfer_that_heeds_them(self, tmp_path, folder):
        path = self.flashinfer(tmp_path, own=True)
        out, said = run(THEIRS, FLASHINFER_TRACE_APPLY=1, PYTHONPATH=path, **folder)
        assert out == "0 None"
        assert said.count("left to FlashInfer's own Trace Apply") == 1

    def test_ours_win(self, tmp_path, folder):
        path = self.flashinfer(tmp_path, own=True)
        given = {"FLASHINFER_TRACE_APPLY": 1, "PYTHONPATH": path, **folder}
        mine = given.pop("FLASHINFER_TRACE_APPLY_PATH")
        out, said = run(THEIRS, FIB_ENABLE_APPLY=1, FIB_APPLY_PATH=mine, **given)
        assert (out[:3], "left to" in said) == ("100", False)
        out, said = run(THEIRS, FIB_ENABLE_APPLY=0, FIB_APPLY_PATH=mine, **given)
        assert (out, said) == ("0 None", "")

    def test_what_is_wrong_is_a_warning(self, tmp_path, folder):
        path = self.flashinfer(tmp_path, own=False)
        chosen = folder["FLASHINFER_TRACE_APPLY_PATH"]
        out, said = run(THEIRS, FLASHINFER_TRACE_APPLY="yes", PYTHONPATH=path, **folder)
        assert out == "0 None"
        assert "apply stays off: ConfigError: FLASHINFER_TRACE_APPLY='yes' is neither 0" in said
        (chosen / "solutions" / "broken.json").write_text("{")
        out, said = run(THEIRS, FLASHINFER_TRACE_APPLY=1, PYTHONPATH=path, **folder)
        assert out == "0 None"
        assert "broken.json" in said
        folder.pop("FLASHINFER_TRACE_APPLY_PATH")
        out, said = run(THEIRS, FLASHINFER_TRACE_APPLY=1, PYTHONPATH=path, **folder)
        assert "nothing is configured: set FLASHINFER_TRACE_APPLY_PATH" in said


@pytest.mark.slow
@pytest.mark.torch
def test_a_failure_is_told_and_no_error_even_where_warnings_are(tmp_path, places):
    """The dataset does not stand in for the folder of chosen solutions, which is not there."""
    places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
    places["FIB_APPLY_PATH"] = tmp_path / "nowhere"
    out, said = run(PROGRAM, "-W", "error::UserWarning", FIB_ENABLE_APPLY=1, **places)
    assert out == "0 0 None"
    assert "FIB_ENABLE_APPLY: apply stays off: DatasetNotFoundError" in said
    assert "Traceback" not in said
