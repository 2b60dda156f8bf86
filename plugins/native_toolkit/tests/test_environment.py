"""What the environment asks of compilers."""

import pytest

from fib_native_toolkit import environment
from flashinfer_bench.errors import CapabilityError


@pytest.mark.parametrize(("text", "jobs"), [(" 12 ", 12), ("0", None), ("many", None)])
def test_jobs(monkeypatch, text, jobs):
    monkeypatch.setenv("MAX_JOBS", text)
    assert environment.max_jobs() == jobs


def test_the_variable_goes_first(monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a;10.0 12.0+PTX,8.9")
    assert environment.cuda_architectures() == ("9.0a", "10.0", "12.0+PTX", "8.9")
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a sm_90")
    with pytest.raises(ValueError, match="'sm_90' is not a compute capability"):
        environment.cuda_architectures()


def test_gpus_get_the_features_that_only_they_have(monkeypatch):
    monkeypatch.setattr(environment, "gpu_architectures", lambda: ("8.9", "9.0", "10.0"))
    assert environment.cuda_architectures() == ("8.9", "9.0a", "10.0a")
    monkeypatch.setattr(environment, "gpu_architectures", tuple)
    with pytest.raises(CapabilityError, match="FIB_CUDA_ARCH_LIST is not set") as caught:
        environment.cuda_architectures()
    assert "9.0a" in caught.value.hint
