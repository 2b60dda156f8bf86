"""The plugin as the host sees it."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

import fib_timing_cuda
from flashinfer_bench.bench.timing import pick_timer
from flashinfer_bench.plugins import Availability, Catalog, discover

(RECORD,) = [one for one in fib_timing_cuda.fib_register_timers() if one.name == "cupti"]
README = Path(__file__).parents[2] / "README.md"


def test_making_a_recorder_imports_no_torch_extension(in_child):
    """Timers are constructed in every candidate: nothing may start CUDA there."""
    standin = Path(__file__).parent / "standin"
    code = (
        f"import sys; sys.path.insert(0, {str(standin)!r})\n"
        "from fib_timing_cuda.cupti import Recorder\n"
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


def here():
    return Availability(True, "pretended")


class TestChoice:
    """Which of the timers for a GPU is taken."""

    def catalog(self, of_core, monkeypatch, answer):
        monkeypatch.setattr("fib_timing_cuda.probes.cupti", answer)
        return Catalog.of(RECORD, of_core)

    def test_it_is_taken_by_name_alone(self, of_core, monkeypatch, caplog):
        catalog = self.catalog(of_core, monkeypatch, here)
        with caplog.at_level(logging.WARNING):
            assert pick_timer(catalog, "cuda:0")[0].name == "cuda_event"
            assert pick_timer(catalog, "cuda:0", "cupti")[0].name == "cupti"
        assert caplog.text == ""  # events are no makeshift
