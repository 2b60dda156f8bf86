"""Each adapter keeps to the contract of all adapters."""

import pytest

import fib_adapters_flashinfer
from fib_testing import AdapterCase, AdapterConformance

RECORDS = {record.name: record for record in fib_adapters_flashinfer.fib_register_adapters()}


def _linear():
    return [object(), object()], {"bias": object()}


def _run_return_lse():
    """Of a method that has no signature of its own: `run` with this argument filled in."""
    return [object(), "q", "cache"], {"return_lse": True}


@pytest.mark.plugin("flashinfer")
class TestAdapters(AdapterConformance):
    @pytest.fixture(params=sorted(RECORDS))
    def case(self, request):
        record = RECORDS[request.param]
        sums = [path for path in record.targets if path.endswith(".run_return_lse")]
        arguments = {"torch.nn.functional.linear": _linear, **dict.fromkeys(sums, _run_return_lse)}
        return AdapterCase(record=record, arguments=arguments)
