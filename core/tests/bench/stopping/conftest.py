"""Beside core's rule there are those of a plugin."""

import sys
from pathlib import Path

import pytest

from flashinfer_bench.plugins import Catalog, StopRuleSpec, default_catalog, reset_default_catalog

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def more_rules(monkeypatch):
    """Register the rules ``flat`` and ``near``."""
    monkeypatch.syspath_prepend(HERE)
    records = [
        StopRuleSpec(name=name.lower(), factory=f"flat_rule:{name}", summary=f"{name} samples")
        for name in ("Flat", "Near")
    ]
    mine = Catalog.of(*records, distribution="fib-flat", version="1")
    there = [entry for entry in default_catalog().records if entry.name != "rse"]
    reset_default_catalog(Catalog.build([*there, *mine.records]))
    yield
    reset_default_catalog()
    sys.modules.pop("flat_rule", None)
