"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

import fib_timing_cupti
from flashinfer_bench.bench.backends import choose_timer
from flashinfer_bench.bench.timing import Timer
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import Availability, Catalog, discover

(RECORD,) = fib_timing_cupti.fib_register_timers()
README = Path(__file__).parent.parent / "README.md"


class TestInstalled:
    def test_as_a_plugin_of_its_own_distribution(self):
        (point,) = [
            point
            for point in importlib.metadata.entry_points(group="flashinfer_bench.plugins")
            if point.value == "fib_timing_cupti"
        ]
        assert point.name == "cupti"
        assert point.dist.name == "fib-timing-cupti"

    def test_its_version_is_that_of_core(self):
        assert importlib.metadata.version("fib-timing-cupti") == importlib.metadata.version(
            "flashinfer-bench-core"
        )

    def test_it_does_not_pull_in_what_is_not_free(self):
        required = importlib.metadata.requires("fib-timing-cupti")
        assert [line for line in required if "cupti-python" in line and "extra" not in line] == []
        assert any(re.match(r"cupti-python>=13.*extra == .cupti.", line) for line in required)

    def test_the_host_finds_it(self):
        (found,) = [entry for entry in discover().timers if entry.name == "cupti"]
        assert found.distribution == "fib-timing-cupti"


class TestRecord:
    def test_the_factory_makes_timers_without_the_package(self):
        (entry,) = Catalog.of(RECORD).timers
        factory = entry.load()
        assert issubclass(factory, Timer)
        assert (factory.name, factory.version) == ("cupti", "2")

    def test_record_and_class_agree(self):
        from fib_timing_cupti.timer import CuptiTimer

        assert RECORD.resolution_ms == CuptiTimer.resolution_ms
        assert RECORD.repeats is CuptiTimer.repeats is False
        assert RECORD.caches == CuptiTimer.caches

    def test_it_is_for_solutions_that_nobody_trusts(self):
        assert RECORD.why_trust is None

    def test_loading_imports_neither_torch_nor_cupti(self, in_child):
        code = (
            "import sys, fib_timing_cupti as plugin\n"
            "plugin.fib_register_timers()\n"
            "from fib_timing_cupti.probe import probe\n"
            "probe()\n"
            "heavy = {'torch', 'numpy', 'cupti', 'cuda', 'fib_timing_cupti.timer'}\n"
            "print(sorted(heavy & set(sys.modules)))\n"
        )
        assert in_child(code) == "[]\n"

    def test_making_one_imports_no_torch_extension(self, in_child):
        """Timers are constructed in every candidate: nothing may start CUDA there."""
        standin = Path(__file__).parent / "standin"
        code = (
            f"import sys; sys.path.insert(0, {str(standin)!r})\n"
            "from fib_timing_cupti.recorder import Recorder\n"
            "Recorder()\n"
            "from cupti import cupti\n"
            "print('torch' in sys.modules, cupti.device.log)\n"
        )
        assert in_child(code) == "False []\n"


@pytest.fixture
def of_core():
    """Core's own timer for the same devices; whether it can be used is not asked."""
    (entry,) = [entry for entry in discover().timers if entry.name == "cuda_event"]
    return replace(entry.spec, probe=None)


def here() -> Availability:
    return Availability(True, "pretended")


def not_here() -> Availability:
    return Availability(False, "cupti-python is not installed", "install it")


class TestChoice:
    """Which of the timers for a GPU is taken."""

    def catalog(self, of_core, monkeypatch, answer):
        monkeypatch.setattr("fib_timing_cupti.probe.probe", answer)
        return Catalog.of(RECORD, of_core)

    def test_it_is_taken_by_name_alone(self, of_core, monkeypatch, caplog):
        catalog = self.catalog(of_core, monkeypatch, here)
        with caplog.at_level(logging.WARNING):
            assert choose_timer(catalog, "cuda:0") == "cuda_event"
            assert choose_timer(catalog, "cuda:0", "cupti") == "cupti"
        assert caplog.text == ""  # events are no makeshift

    def test_where_it_cannot_be_used_that_is_said(self, of_core, monkeypatch):
        catalog = self.catalog(of_core, monkeypatch, not_here)
        with pytest.raises(CapabilityError, match="cupti-python is not installed"):
            choose_timer(catalog, "cuda:0", "cupti")
        assert choose_timer(catalog, "cuda:0") == "cuda_event"

    def test_it_is_not_for_the_cpu(self, of_core, monkeypatch):
        assert RECORD.devices == ("cuda",)


def test_the_readme_names_the_hint_of_the_probe():
    from fib_timing_cupti.probe import _INSTALL

    assert "'fib-timing-cupti[cupti]'" in _INSTALL
    assert "'fib-timing-cupti[cupti]'" in README.read_text(encoding="utf-8")
