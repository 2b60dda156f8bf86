"""The plugin as the host sees it."""

import logging
from dataclasses import replace
from pathlib import Path

import fib_timing_cuda
from fib_tests.scaled_add import run_in_child
from flashinfer_bench.bench.timing import pick_timer
from flashinfer_bench.plugins import Catalog

RECORDS = {record.name: record for record in fib_timing_cuda.fib_register_timers()}


def test_making_a_recorder_imports_no_torch_extension():
    """Timers are constructed in every candidate: nothing may start CUDA there."""
    standin = Path(__file__).parent / "standin"
    code = (
        f"import sys; sys.path.insert(0, {str(standin)!r})\n"
        "from fib_timing_cuda.cupti import Recorder\n"
        "Recorder()\n"
        "from cupti import cupti\n"
        "print('torch' in sys.modules, cupti.device.log)\n"
    )
    assert run_in_child(code).stdout == "False []\n"


def test_it_is_taken_by_name_alone(caplog):
    names = ("cuda_event", "cupti")
    catalog = Catalog.of(*(replace(RECORDS[name], probe=None) for name in names))
    with caplog.at_level(logging.WARNING):
        assert pick_timer(catalog, "cuda:0")[0].name == "cuda_event"
        assert pick_timer(catalog, "cuda:0", "cupti")[0].name == "cupti"
    assert caplog.text == ""  # events are no makeshift
