"""What is recorded about machine and toolchain, and that none of it can end a run."""

import json
import re
import sys
from types import SimpleNamespace

import pytest

from fib_build_cache.info import BUILD_INFO, FORMAT
from fib_compare import origin
from fib_compare.origin import gpu_facts, host_fingerprint, toolchain_of
from flashinfer_bench.compile.builder import content_digest
from flashinfer_bench.compile.cache import COMPLETE

KEY = {"compiler": "g++ 13.2\nCopyright", "c_compiler": "gcc 13.2", "flags": "-O3"}
TEXTS = "builder build_type solution author definition language created library library_sha256"
NUMBERS = {"format": FORMAT, "seconds": 1.0, "library_bytes": 1}
INFO = json.dumps(
    {**dict.fromkeys(TEXTS.split(), "x"), **NUMBERS, "key": KEY, "binding": None, "headers": {}}
)


@pytest.fixture(autouse=True)
def _forget():
    yield
    host_fingerprint.cache_clear()


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretends to be on a machine, and returns its fingerprint."""

    def pretend(name="desk", ident="1" * 32, cache="one"):
        (tmp_path / "machine-id").write_text(f"{ident}\n")
        monkeypatch.setattr(origin, "_MACHINE_IDS", (tmp_path / "none", tmp_path / "machine-id"))
        monkeypatch.setattr(origin.platform, "node", lambda: name)
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / cache))
        host_fingerprint.cache_clear()
        return host_fingerprint()

    return pretend


class TestFingerprint:
    def test_stays_the_same(self, machine):
        assert re.fullmatch("[0-9a-f]{12}", machine())
        assert machine() == machine()

    @pytest.mark.parametrize("change", [{"name": "lap"}, {"ident": "2" * 32}, {"cache": "two"}])
    def test_tells_machines_apart(self, machine, change):
        assert machine() != machine(**change)

    def test_the_name_cannot_be_found_by_trying_names(self, machine, tmp_path):
        """All that others know gives another hash: the salt never leaves the cache."""
        here = machine(cache="one")
        assert here != machine(cache="two")
        salts = [(tmp_path / name / "machine/host.salt").read_text() for name in ("one", "two")]
        assert len(set(salts)) == 2
        assert all(re.fullmatch("[0-9a-f]{32}", salt) for salt in salts)
        assert [path.name for path in (tmp_path / "one/machine").iterdir()] == ["host.salt"]

    def test_without_a_place_for_the_salt_the_name_does_not_enter(self, machine, tmp_path):
        (tmp_path / "file").write_text("")
        assert machine(name="desk", cache="file/sub") == machine(name="lap", cache="file/sub")

    @pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 32])
    def test_a_damaged_salt_is_no_salt(self, machine, tmp_path, content):
        (tmp_path / "one/machine").mkdir(parents=True)
        (tmp_path / "one/machine/host.salt").write_bytes(content)
        assert machine(name="desk") == machine(name="lap")


class NVMLError(Exception):
    pass


NVML = {
    "NVMLError": NVMLError,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "nvmlInit": lambda: None,
    "nvmlSystemGetDriverVersion": lambda: "590.1",
    "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
    "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 2619}[kind],
}


def failing(*args):
    raise NVMLError("not supported")


class TestGpu:
    @pytest.fixture
    def with_nvml(self, monkeypatch):
        def use(**changes):
            monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**{**NVML, **changes}))
            monkeypatch.setattr(origin, "_uuid_of", lambda device: f"GPU-{device}")
            return gpu_facts("cuda:0")

        return use

    def test_driver_and_clocks(self, with_nvml):
        assert with_nvml() == {"driver": "590.1", "sm_clock_mhz": 1980, "memory_clock_mhz": 2619}
        assert gpu_facts("cpu") == {}

    @pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
    def test_a_driver_that_fails(self, with_nvml, name):
        assert with_nvml(**{name: failing}) == {}

    def test_no_binding(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert gpu_facts("cuda:0") == {}


@pytest.fixture
def build(tmp_path, monkeypatch, problems):
    """Makes a folder in the cache as a builder leaves it, for a definition and a solution."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))

    def make(solution, info=INFO):
        key = json.dumps(KEY, sort_keys=True)
        digest = content_digest(problems.definition(), solution, "x", key)
        folder = tmp_path / "cache" / "cuda" / f"x_{digest}"
        folder.mkdir(parents=True)
        (folder / BUILD_INFO).write_text(info)
        (folder / COMPLETE).touch()

    return make


def test_compilers_are_those_of_the_build_of_this_solution(build, problems):
    build(problems.good("a"))
    build(problems.solution("def run(x):\n    return x\n", "b"))
    found = toolchain_of(problems.definition(), problems.good("a"))
    assert found == {"compiler": "g++ 13.2", "c_compiler": "gcc 13.2"}
    other = problems.solution("def run(x):\n    return 2 * x\n", "a")
    assert toolchain_of(problems.definition(), other) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": 3}', '{"key": {}}', "\x00"])
def test_broken_notes_of_a_build_are_passed_over(build, problems, text):
    build(problems.good("a"), text)
    assert toolchain_of(problems.definition(), problems.good("a")) == {}
