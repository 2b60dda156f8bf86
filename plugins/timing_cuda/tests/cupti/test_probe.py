"""Whether CUPTI can be used, with and without what it needs."""

import importlib
import sys

import pytest

from fib_timing_cuda.probes import cupti as probe
from flashinfer_bench.plugins import Availability

VARIABLES = ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH")


@pytest.fixture
def install(tmp_path, monkeypatch, forgotten):
    """Return a function that puts packages where Python finds them."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(version="13.0.1", packages=("cupti", "cuda/bindings")):
        for package in packages:
            (tmp_path / package).mkdir(parents=True)
            (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported')\n")
        info = tmp_path / f"cupti_python-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: cupti-python\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
        importlib.invalidate_caches()

    return put


@pytest.fixture
def forgotten(monkeypatch):
    """Hide packages of the same names, should they be installed here; forget those of a test."""

    def loaded():
        return [name for name in sys.modules if name.partition(".")[0] in ("cupti", "cuda")]

    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    hidden = {name: sys.modules.pop(name) for name in loaded()}
    yield
    for name in loaded():
        del sys.modules[name]
    sys.modules.update(hidden)


@pytest.fixture
def gpu(monkeypatch):
    """Have core say that there is a GPU."""
    answer = Availability(True, "CUDA 13.0, 1 devices")
    monkeypatch.setattr("fib_timing_cuda.probes.cuda_event", lambda: answer)


class TestProbe:
    @pytest.mark.parametrize("nothing", ["", None])
    def test_all_is_there(self, gpu, install, monkeypatch, nothing):
        install()
        if nothing is not None:
            monkeypatch.setenv(VARIABLES[0], nothing)
        assert probe() == Availability(True, "cupti-python 13.0.1")

    @pytest.mark.parametrize(
        ("version", "packages", "reason"),
        [
            ("12.8.0", ("cupti", "cuda/bindings"), "cupti-python 12.8.0 is too old: 13"),
            ("13.0.1", ("cupti",), "lacks cuda-bindings"),
            ("13.0.1", ("cupti", "cuda/core"), "lacks cuda-bindings"),
            ("13.0.1", (), "cupti-python is not installed"),
        ],
    )
    def test_what_is_missing(self, gpu, install, version, packages, reason):
        install(version, packages)
        answer = probe()
        assert not answer
        assert reason in answer.reason
        assert "cupti-python" in answer.remedy

    @pytest.mark.parametrize("variable", VARIABLES)
    def test_a_tool_is_named_with_what_to_do(self, gpu, install, monkeypatch, variable):
        install()
        monkeypatch.setenv(variable, "/opt/tool.so")
        answer = probe()
        assert not answer
        assert variable in answer.reason
        assert "--timer cuda_event" in answer.remedy
