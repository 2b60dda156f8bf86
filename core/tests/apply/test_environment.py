"""Turning apply on by the environment, in processes of their own; and what importing it costs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flashinfer_bench import env

spec = importlib.util.spec_from_file_location(
    "runtime_dataset", Path(__file__).with_name("runtime_dataset.py")
)
runtime_dataset = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runtime_dataset)
Dataset, sample = runtime_dataset.Dataset, runtime_dataset.sample

PROGRAM = """
import torch
from flashinfer_bench.apply import apply, get_runtime

@apply("double")
def double(x):
    return x * 2

print(int(double(torch.zeros(2, 4))[0, 0]), get_runtime())
"""


def run(program, *options, **variables):
    """Run a program with exactly these variables of ours; return what it wrote, and said."""
    own = {variable.name for variable in env.VARIABLES}
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

    def test_the_module_first(self, places):
        run(
            """
            import flashinfer_bench.apply
            from flashinfer_bench import apply, enable_apply
            from flashinfer_bench.apply import apply as function
            assert apply is flashinfer_bench.apply
            assert flashinfer_bench.apply.enable_apply is enable_apply
            assert function.__name__ == "apply"
            """,
            **places,
        )


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.plugin("python")
class TestEnabled:
    def test_by_the_variables_alone(self, tmp_path, places):
        dataset = sample(tmp_path / "dataset")
        places["FIB_DATASET_PATH"] = dataset.root
        out, said = run(PROGRAM, FIB_ENABLE_APPLY=1, **places)
        assert out.startswith("100 <ApplyRuntime")
        assert said == ""

    def test_at_the_first_use_if_they_are_set_later(self, tmp_path, places):
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        late = "import os\nimport flashinfer_bench.apply\nos.environ['FIB_ENABLE_APPLY'] = '1'\n"
        assert run(late + PROGRAM, **places)[0].startswith("100")

    def test_single_calls_as_well(self, tmp_path, places):
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        program = """
            import torch
            from flashinfer_bench import apply
            print(int(apply("double", args=(torch.zeros(2, 4),))[0, 0]))
        """
        assert run(program, FIB_ENABLE_APPLY="yes", **places)[0] == "100"

    def test_by_a_folder_of_chosen_solutions(self, tmp_path, places):
        chosen = Dataset(tmp_path / "chosen").definition().solution("chosen", tag=7)
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        out, _ = run(PROGRAM, FIB_ENABLE_APPLY=1, FIB_APPLY_PATH=chosen.root, **places)
        assert out.startswith("7 ")

    def test_can_be_disabled_by_the_program(self, tmp_path, places):
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        disable = "from flashinfer_bench import disable_apply\ndisable_apply()\n"
        assert run(disable + PROGRAM, FIB_ENABLE_APPLY=1, **places)[0] == "0 None"

    @pytest.mark.parametrize("value", ["0", "", "false", "no"])
    def test_not_if_the_variable_says_so(self, tmp_path, places, value):
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        assert run(PROGRAM, FIB_ENABLE_APPLY=value, **places) == ("0 None", "")

    def test_not_without_it(self, tmp_path, places):
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        assert run(PROGRAM, **places) == ("0 None", "")

    def test_not_in_the_command_line(self, tmp_path, places):
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        inside = "import flashinfer_bench.cli.main\n"
        assert run(inside + PROGRAM, FIB_ENABLE_APPLY=1, **places)[0] == "0 None"


@pytest.mark.slow
@pytest.mark.torch
class TestFailures:
    def test_of_the_dataset_are_a_warning(self, places):
        out, said = run(PROGRAM, FIB_ENABLE_APPLY=1, **places)
        assert out == "0 None"
        assert "UserWarning: FIB_ENABLE_APPLY: apply stays off: DatasetNotFoundError" in said
        assert "Traceback" not in said

    def test_of_the_variable_are_a_warning(self, places):
        out, said = run(PROGRAM, FIB_ENABLE_APPLY="maybe", **places)
        assert out == "0 None"
        assert "FIB_ENABLE_APPLY='maybe' is neither true" in said

    def test_of_the_folder_are_a_warning(self, tmp_path, places):
        places["FIB_DATASET_PATH"] = sample(tmp_path / "dataset").root
        nowhere = tmp_path / "nowhere"
        out, said = run(PROGRAM, FIB_ENABLE_APPLY=1, FIB_APPLY_PATH=nowhere, **places)
        assert out == "0 None"
        assert "apply stays off" in said

    def test_of_a_folder_with_two_solutions_of_one_definition(self, tmp_path, places):
        chosen = Dataset(tmp_path / "chosen").definition().solution("one").solution("two")
        out, said = run(PROGRAM, FIB_ENABLE_APPLY=1, FIB_APPLY_PATH=chosen.root, **places)
        assert out == "0 None"
        assert "apply stays off" in said

    def test_are_no_errors_even_where_warnings_are(self, places):
        options = ("-W", "error::UserWarning")
        out, said = run(PROGRAM, *options, FIB_ENABLE_APPLY=1, **places)
        assert out == "0 None"
        assert "apply stays off" in said
        assert "Traceback" not in said

    def test_are_told_once(self, places):
        twice = PROGRAM + "double(torch.zeros(2, 4))\napply('d', (1,), None, lambda x: x)\n"
        _, said = run(twice, FIB_ENABLE_APPLY=1, **places)
        assert said.count("UserWarning: ") == 1


def test_the_variables(monkeypatch, tmp_path):
    monkeypatch.delenv("FIB_ENABLE_APPLY", raising=False)
    monkeypatch.delenv("FIB_APPLY_PATH", raising=False)
    assert env.apply_path() is None
    assert not env.apply_mentioned()
    monkeypatch.setenv("FIB_APPLY_PATH", "")
    assert env.apply_path() is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_APPLY_PATH", "chosen")
    assert env.apply_path() == tmp_path / "chosen"
    for value, mentioned in (("0", False), ("off", False), ("1", True), ("maybe", True)):
        monkeypatch.setenv("FIB_ENABLE_APPLY", value)
        assert env.apply_mentioned() is mentioned
