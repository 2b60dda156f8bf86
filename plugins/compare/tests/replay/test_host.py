"""What is recorded about a machine, and that none of it can end a run."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fib_compare import origin
from fib_compare.origin import gpu_facts, host_fingerprint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    host_fingerprint.cache_clear()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Pretends to be on a machine, and returns its fingerprint."""

    def pretend(name: str = "desk", ident: str = "1" * 32, cache: str = "one") -> str:
        (tmp_path / "machine-id").write_text(f"{ident}\n")
        monkeypatch.setattr(origin, "_MACHINE_IDS", (tmp_path / "none", tmp_path / "machine-id"))
        monkeypatch.setattr(origin.platform, "node", lambda: name)
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / cache))
        host_fingerprint.cache_clear()
        return host_fingerprint()

    return pretend


class TestFingerprint:
    def test_stays_the_same(self, machine: Any) -> None:
        assert re.fullmatch("[0-9a-f]{12}", machine())
        assert machine() == machine()

    @pytest.mark.parametrize("change", [{"name": "lap"}, {"ident": "2" * 32}, {"cache": "two"}])
    def test_tells_machines_apart(self, machine: Any, change: dict[str, str]) -> None:
        assert machine() != machine(**change)

    def test_the_name_cannot_be_found_by_trying_names(self, machine: Any, tmp_path: Path) -> None:
        """All that others know gives another hash: the salt never leaves the cache."""
        here = machine(cache="one")
        assert here != machine(cache="two")
        salts = [(tmp_path / name / "machine/host.salt").read_text() for name in ("one", "two")]
        assert len(set(salts)) == 2
        assert all(re.fullmatch("[0-9a-f]{32}", salt) for salt in salts)
        assert [path.name for path in (tmp_path / "one/machine").iterdir()] == ["host.salt"]

    def test_without_a_place_for_the_salt_the_name_does_not_enter(
        self, machine: Any, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        assert machine(name="desk", cache="file/sub") == machine(name="lap", cache="file/sub")

    @pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 32])
    def test_a_damaged_salt_is_no_salt(self, machine: Any, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "one/machine").mkdir(parents=True)
        (tmp_path / "one/machine/host.salt").write_bytes(content)
        assert machine(name="desk") == machine(name="lap")


class NVMLError(Exception):
    pass


def fake_nvml(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "590.1",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 2619}[kind],
    }
    return SimpleNamespace(**{**values, **changes})


def failing(*args: Any) -> Any:
    raise NVMLError("not supported")


class TestGpu:
    @pytest.fixture
    def with_nvml(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def use(**changes: Any) -> dict[str, Any]:
            monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**changes))
            monkeypatch.setattr(origin, "_uuid_of", lambda device: f"GPU-{device}")
            return gpu_facts("cuda:0")

        return use

    def test_driver_and_clocks(self, with_nvml: Any) -> None:
        assert with_nvml() == {"driver": "590.1", "sm_clock_mhz": 1980, "memory_clock_mhz": 2619}
        assert gpu_facts("cpu") == {}

    @pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
    def test_a_driver_that_fails(self, with_nvml: Any, name: str) -> None:
        assert with_nvml(**{name: failing}) == {}

    def test_no_binding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert gpu_facts("cuda:0") == {}
