"""``fib apply``: what it shows, what it refuses, and how it exits."""

import json
from contextlib import contextmanager

import pytest

from fib_tests.cli import tables
from flashinfer_bench.compile import reset_default_registry
from flashinfer_bench.errors import BuildError
from flashinfer_bench.plugins import reset_default_catalog

HERE = "Test CPU (2 cores)"


@pytest.fixture
def dataset(maker):
    """A dataset in which two solutions compete for two sizes, and others are out for a reason."""
    maker.definition()
    maker.definition("dot", inputs={"x": {"shape": ["N"], "dtype": "bfloat16"}})
    maker.solution("quick")
    maker.solution("steady")
    maker.solution("wrong")
    maker.solution("elsewhere")
    maker.solution("unused")
    for size, quick, steady in ((16, 1.0, 2.0), (32, 4.0, 3.0)):
        given = {"axes": {"N": size}, "uuid": f"w{size}", "hardware": HERE}
        maker.trace("quick", latency_ms=quick, **given)
        maker.trace("steady", latency_ms=steady, **given)
    maker.trace("wrong", status="INCORRECT_NUMERICAL", error=3.0, **given)
    maker.trace("elsewhere", latency_ms=0.1, **{**given, "hardware": "NVIDIA H100"})
    maker.trace("lost", latency_ms=0.1, **given)
    return maker


# --------------------------------------------------------------------------------- explain


def test_who_takes_each_size(fib, dataset):
    result = fib("apply", "explain", "double", dataset.root, "--hardware", HERE)
    assert result.exit_code == 0, result.stderr
    keys, _ = tables(result.stdout)
    assert [(row["key"], row["place"], row["solution"]) for row in keys] == [
        ("N=16", "1", "quick"),
        ("N=16", "2", "steady"),
        ("N=32", "1", "steady"),
        ("N=32", "2", "quick"),
    ]
    assert [row["latency_ms"] for row in keys] == ["1", "2", "3", "4"]
    assert keys[1]["slower"] == "2"
    assert "2 of 2 recorded keys have a winner" in result.stderr
    assert f"double on {HERE}" in result.stderr


def test_the_tolerance_follows_the_dtype_unless_it_is_given(fib, dataset):
    def told(*options):
        arguments = ("apply", "explain", dataset.root, "double", "--hardware", HERE, *options)
        return fib(*arguments)

    assert "absolute error up to 0.000977 or relative" in told().stderr
    strict = told("--max-atol", "1e-9")
    keys, solutions = tables(strict.stdout)
    assert [row["solution"] for row in keys] == ["", ""]
    reasons = {row["solution"]: row["why_not"] for row in solutions}
    assert "absolute error 1e-06 > 1e-09 (2 runs)" in reasons["quick"]
    assert "0 of 2 recorded keys have a winner" in strict.stderr
    assert told("--max-rtol", "-1").exit_code == 2


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (["16"], "'16' is not of the form NAME=SIZE, such as M=16"),
        (["=16"], "'=16' is not of the form"),
        (["N=-1"], "'N=-1' is not of the form"),
        (["N=²"], "is not of the form"),
        (["N=16", "N=32"], "axis 'N' has two sizes, 16 and 32"),
        (["N=16,"], "'' is not of the form"),
        (["K=16"], "'K'"),
    ],
)
def test_sizes_that_are_none(fib, dataset, axes, words):
    result = fib("apply", "explain", dataset.root, "double", "--axes", *axes)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [["explain", "double"], ["list"], ["build", "--no-helper"]])
def test_dataset_and_device_are_given_to_all_commands_alike(fib, dataset, monkeypatch, command):
    def run(*options):
        return fib("apply", *command, *options)

    here = ("--hardware", HERE, "--json")
    results = [run(dataset.root, *here), run("--local", dataset.root, *here)]
    monkeypatch.setenv("FIB_DATASET_PATH", str(dataset.root))
    results.append(run(*here))
    assert results[0].exit_code == 0, results[0].stderr
    assert len({result.stdout for result in results}) == 1
    for options, words in (
        ((dataset.root, "--local", dataset.root), "only one DATASET"),
        ((dataset.root / "nowhere",), "nowhere does not exist"),
        (("--device", "tpu"), "no device 'tpu'; allowed: cpu, cuda or cuda:N"),
        (("--device", "cpu", "--hardware", HERE), "give --device or --hardware, not both"),
    ):
        result = run(*options)
        assert result.exit_code == 2
        assert words in result.stderr
    assert not (dataset.root / "nowhere").exists()


# ------------------------------------------------------------------------------------ list


def test_all_definitions_in_short(fib, dataset):
    result = fib("apply", "list", dataset.root, "--hardware", HERE)
    assert result.exit_code == 0, result.stderr
    (rows,) = tables(result.stdout)
    found = {row["definition"]: row for row in rows}
    assert list(found) == ["dot", "double"]
    double, dot = found["double"], found["dot"]
    assert (double["keys"], double["won"], double["runs"]) == ("2", "2", "7")
    assert double["winners"] == "quick 1, steady 1"
    assert "hardware 1" in double["not_counted"]
    assert (dot["keys"], dot["won"], dot["winners"], dot["not_counted"]) == ("0", "0", "", "")
    assert f"2 of 2 recorded keys have a winner on {HERE}" in result.stderr
    assert "1 run on other hardware" in result.stderr


@pytest.mark.parametrize("command", [["list"], ["explain", "double"]])
def test_what_cannot_be_read_is_told_and_left_out(fib, dataset, command):
    dataset.raw("solutions/bob/broken.json", '{"name": ')
    result = fib("apply", *command, dataset.root, "--hardware", HERE)
    assert result.exit_code == 1
    assert "broken.json" in result.stderr
    assert "'fib validate' lists all of them" in result.stderr
    assert "quick" in result.stdout


# ----------------------------------------------------------------------------------- build


@contextmanager
def forgetting():
    """Have probes asked anew, and again afterwards: their answers are kept for the process."""
    reset_default_catalog()
    reset_default_registry()
    try:
        yield
    finally:
        reset_default_catalog()
        reset_default_registry()


@pytest.mark.plugin("python")
@pytest.mark.torch
class TestBuild:
    @pytest.fixture(autouse=True)
    def _no_helper(self, monkeypatch, tmp_path):
        """Compiling it takes long: here no compiler is found."""
        with forgetting():
            monkeypatch.setenv("PATH", str(tmp_path))
            monkeypatch.delenv("CXX", raising=False)
            yield

    def test_only_winners_are_built(self, fib, dataset):
        result = fib("apply", "build", dataset.root, "--hardware", HERE, "--jobs", "2")
        assert result.exit_code == 0, result.stderr
        (rows,) = tables(result.stdout)
        assert [(row["solution"], row["keys"], row["result"]) for row in rows] == [
            ("quick", "1", "built"),
            ("steady", "1", "built"),
        ]
        assert "2 builds in" in result.stderr
        assert "build 2/2: built" in result.stderr

    @pytest.mark.parametrize("jobs", ["0", "many"])
    def test_jobs_that_are_none(self, fib, dataset, jobs):
        result = fib("apply", "build", dataset.root, "--hardware", HERE, "--jobs", jobs)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr

    def test_what_fails_is_told_with_its_reason(self, fib, dataset):
        dataset.solution("quick", code="import nothing_of_that_name\ndef run(x): return x\n")
        result = fib("apply", "build", dataset.root, "--hardware", HERE)
        assert result.exit_code == 1
        (rows,) = tables(result.stdout)
        found = {row["solution"]: row for row in rows}
        assert found["quick"]["result"] == "failed"
        assert "nothing_of_that_name" in found["quick"]["detail"]
        assert found["steady"]["result"] == "built"
        assert "Traceback" not in result.stderr

    def test_what_a_solution_prints_is_no_data(self, fib_process, dataset):
        dataset.solution("quick", code="print('hello')\ndef run(x): return x\n")
        done = fib_process("apply", "build", dataset.root, "--hardware", HERE)
        assert done.returncode == 0
        assert "hello" not in done.stdout
        assert done.stdout.startswith("definition\t")


@pytest.mark.plugin("python")
@pytest.mark.torch
class TestHelper:
    @pytest.fixture
    def native(self, monkeypatch):
        """The helper's module, without a compiler, and with a helper that is not real."""
        from flashinfer_bench.apply.dispatch import recognition

        calls = []
        monkeypatch.setattr(recognition, "by_helper", lambda: "maker" if calls else None)
        monkeypatch.setattr(recognition, "build_helper", lambda: calls.append("build"))
        return calls

    @pytest.fixture
    def build(self, fib, dataset):
        """Run the command; it must do its main work whatever becomes of the helper."""

        def build(*options):
            result = fib("apply", "build", dataset.root, "--hardware", HERE, "--json", *options)
            assert result.exit_code == 0, result.stderr
            found = json.loads(result.stdout)
            assert [one["result"] for one in found["builds"]] == ["built", "built"]
            told = [each for each in result.stderr.splitlines() if each.startswith("helper: ")]
            return found["helper"], told[-1]

        return build

    def test_it_is_compiled_once(self, native, build):
        helper, line = build()
        assert helper == {"state": "built", "reason": None, "log": ""}
        assert "programs that enable apply use it from now on" in line
        helper, line = build()
        assert helper["state"] == "present"
        assert "already compiled" in line
        assert native == ["build"]

    def test_one_that_does_not_compile(self, native, build, monkeypatch):
        def fail():
            raise BuildError("the helper does not compile", log="all of it")

        monkeypatch.setattr("flashinfer_bench.apply.dispatch.recognition.build_helper", fail)
        helper, line = build()
        assert helper == {
            "state": "failed",
            "reason": "the helper does not compile",
            "log": "all of it",
        }
        assert "the helper does not compile" in line

    def test_without_a_compiler(self, build, tmp_path, monkeypatch):
        pytest.importorskip("fib_apply_helper").helper.cache_clear()  # of another test's cache
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        with forgetting():
            helper, line = build()
        assert helper["state"] == "unavailable"
        assert "c++ not found" in helper["reason"]
        assert "dispatch works without it" in line


def test_nothing_to_build(fib, dataset):
    result = fib("apply", "build", dataset.root, "--hardware", "Another CPU (8 cores)")
    assert result.exit_code == 5
    assert "apply can use no solution of the dataset on Another CPU (8 cores)" in result.stderr
    assert "fib apply list" in result.stderr
