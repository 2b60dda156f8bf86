"""Which errors of a call are the compiler's, and what is said about them."""

from __future__ import annotations

import gc
import shutil
import subprocess

import pytest
import torch

from flashinfer_bench.bench.candidate.failures import describe_failure
from flashinfer_bench.errors import BuildCapabilityError, BuildError

IN_C = 'out_idx=[-1], target="c", execution_backend="cython"'
STATEMENT = "out[i] = (x[i] + y[i]) * scale"


@pytest.fixture
def failed(build, make_solution, source, inputs):
    """Return a function that changes the good source, calls the result, and returns the error."""

    def run(old, new, *arguments) -> Exception:
        assert old in source
        runnable = build(make_solution(source.replace(old, new)))
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what tests ask
            runnable(*(arguments or inputs))
        return caught.value

    return run


def refuses_sm_50():
    """Return whether there is an nvcc that does not know what TileLang takes by default."""
    if shutil.which("nvcc") is None:
        return False
    done = subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True)
    return "sm_50" not in done.stdout.split()


@pytest.fixture
def leaky():
    """Collect the files that TileLang leaves open where a C or CUDA compiler fails."""
    yield
    gc.collect()


class TestCompiler:
    @pytest.mark.usefixtures("leaky")
    @pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
    def test_what_the_c_compiler_refuses(self, failed, capfd):
        error = failed(STATEMENT, "out[i] = T.call_extern('float32', '1bad', x[i])")
        assert isinstance(error, BuildError)
        assert "the generated code does not compile; see the compiler output" in str(error)
        assert "\n" not in error.message
        assert "1bad" in error.log
        assert "error: " in capfd.readouterr().err

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to compile for")
    @pytest.mark.parametrize("target", ["", 'target="auto"', 'target="cuda"'])
    @pytest.mark.usefixtures("leaky")
    @pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
    def test_a_solution_for_gpus_without_a_gpu(self, failed, target):
        if "cuda" in target and not refuses_sm_50():
            pytest.skip("nvcc is not in PATH, or old enough to compile for what TileLang assumes")
        error = failed(IN_C, f"out_idx=[-1], {target}")
        assert isinstance(error, BuildCapabilityError)
        assert error.message == "solution 'my_solution': TileLang finds no GPU to compile for"
        assert "target='c' for the CPU" in error.hint
        assert "Traceback" in error.log
        assert describe_failure(1, error).about == "capability"


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        ("y.flatten(), ", "", ValueError, "Expected 4 inputs, got 3"),
        ("(x.flatten()", "(x.double().flatten()", ValueError, "Buffer dtype mismatch"),
        ("(x.flatten()", "(x.flatten()[:5]", ValueError, "Static shape mismatch"),
        ("    return scaled_add(", "    raise KeyError('mine')\n    (", KeyError, "mine"),
        (
            "    return scaled_add(",
            "    open('/no/such/file')\n    (",
            FileNotFoundError,
            "No such",
        ),
    ],
)
def test_other_errors_come_through_as_they_are(failed, old, new, kind, text):
    error = failed(old, new)
    assert type(error) is kind
    assert text in str(error)
