"""How FlashInfer-Bench finds the plugin."""

from __future__ import annotations

import pytest
from flashinfer_bench.compile import Builder
from flashinfer_bench.plugins import Catalog

import fib_builder_example
from fib_builder_example.probe import probe


@pytest.fixture
def record():
    """Return the plugin's record."""
    (spec,) = fib_builder_example.fib_register_builders()
    return spec


def test_solutions_in_the_language_come_to_it(record):
    chosen = Catalog.of(record).select_builder("c")
    assert issubclass(chosen.load(), Builder)


@pytest.mark.parametrize(
    ("language", "binding"),
    [
        ("cpp", None),
        ("cuda", None),
        ("c", "torch"),
    ],
)
def test_other_languages_and_bindings_are_not_its_business(record, language, binding):
    assert not record.accepts(language, binding)


def test_without_a_compiler_the_probe_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    answer = probe()
    assert not answer.ok
    assert "no-such-compiler" in answer.reason
    assert answer.remedy


def test_without_torch_the_probe_says_what_to_install(monkeypatch):
    monkeypatch.setattr("fib_builder_example.probe.find_spec", lambda name: None)
    answer = probe()
    assert not answer.ok
    assert "torch is not installed" in answer.reason
    assert "pip install" in answer.remedy
