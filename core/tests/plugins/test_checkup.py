"""The closer look: requirements, code that cannot be imported, and what is merely worth knowing."""

from __future__ import annotations

import sys
import types

import pytest

from flashinfer_bench.cli.plugins import check_up
from flashinfer_bench.plugins import Availability, Catalog, PluginStatus, TimerSpec


@pytest.fixture(autouse=True)
def code(monkeypatch):
    module = types.ModuleType("checkup_code")

    module.Timer = type("Timer", (), {})
    module.no = lambda: Availability(False, "no device", "get one")
    monkeypatch.setitem(sys.modules, "checkup_code", module)


@pytest.fixture
def requiring(tmp_path, monkeypatch):
    """Install a distribution, as far as its metadata go, that requires what it is given."""

    def place(*requirements):
        info = tmp_path / "checked-1.0.dist-info"
        info.mkdir()
        lines = "".join(f"Requires-Dist: {text}\n" for text in requirements)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: checked\nVersion: 1.0\n{lines}"
        )
        monkeypatch.syspath_prepend(tmp_path)

    return place


def examined(factory="checkup_code:Timer", probe=None, **fields):
    record = TimerSpec(name="t", devices=("cpu",), factory=factory, probe=probe)
    catalog = Catalog.of(record, distribution="checked")
    return check_up(catalog, PluginStatus(name="given", distribution="checked", **fields))


def test_code_that_cannot_be_used_here_is_not_imported_and_no_problem():
    checkup = examined("no_such_module:x", "checkup_code:no", state="unavailable")
    assert checkup["problems"] == []
    assert checkup["state"] == "unavailable"
    assert checkup["notes"] == ["timer 't' cannot be used here: no device (get one)"]


def test_heavy_imports_are_noted():
    (note,) = examined(heavy_imports=("torch", "triton"))["notes"]
    assert note.startswith("loading it imports torch, triton, which slows down every start")


def test_a_requirement_of_an_extra_is_none_of_the_plugin(requiring):
    requiring("flashinfer-bench-core>=99; extra == 'later'")
    assert examined()["problems"] == []


def test_a_requirement_that_cannot_be_read_is_a_problem(requiring):
    requiring("flashinfer-bench-core ~~ 3")
    (problem,) = examined()["problems"]
    assert problem["message"].startswith("has a requirement that cannot be read: 'flashinfer-bench")
