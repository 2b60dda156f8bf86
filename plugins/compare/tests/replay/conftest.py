"""Scripted candidates, judged by the verified measurement."""

import pytest

import fib_judge
from fib_tests.scripted import cache_folder, executor, problems
from fib_tests.scripted import catalog as core_catalog
from flashinfer_bench.plugins import Catalog


@pytest.fixture
def catalog(core_catalog):
    """What an installation with a Python builder and the judge would offer."""
    records = [entry.spec for entry in core_catalog]
    return Catalog.of(*records, *fib_judge.fib_register_measurements())
