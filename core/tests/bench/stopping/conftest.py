"""Beside core's rules there is one of a plugin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flashinfer_bench.plugins import Catalog, StopRuleSpec, default_catalog, reset_default_catalog

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def flat_rule(monkeypatch):
    """Register the rule ``flat``."""
    monkeypatch.syspath_prepend(HERE)
    record = StopRuleSpec(
        name="flat", factory="flat_rule:Flat", summary="When the last samples are alike"
    )
    mine = Catalog.of(record, distribution="fib-flat", version="1")
    reset_default_catalog(Catalog.build([*default_catalog().entries(), *mine.entries()]))
    yield
    reset_default_catalog()
    sys.modules.pop("flat_rule", None)
