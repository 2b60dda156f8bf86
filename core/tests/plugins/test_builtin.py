"""Core's own records: registered like those of any plugin, and naming code that exists."""

from __future__ import annotations

from importlib.util import find_spec

from flashinfer_bench.plugins import Availability, Settings, builtin, discover
from flashinfer_bench.plugins.manager import hooks_of

CORE = discover(Settings(no_plugins=True))


def test_core_goes_through_the_same_checks_as_any_plugin():
    found = hooks_of(builtin)
    assert "fib_register_commands" in found
    assert all(name.startswith("fib_register_") for name in found)
    records = {record.name for function in found.values() for record in function()}
    assert records == {entry.name for entry in CORE}


def test_each_record_names_modules_that_exist_and_no_probe_fails():
    for entry in CORE:
        for path in filter(None, (*entry.spec.paths, entry.spec.probe)):
            assert find_spec(path.partition(":")[0]) is not None, path
        assert entry.spec.summary
        assert isinstance(entry.availability(), Availability)
        assert entry.check is None or entry.check.failure is None
