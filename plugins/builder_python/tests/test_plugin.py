"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from fib_builder_python.builder import probe


def test_the_probe_says_which_python():
    assert probe().ok
    assert probe().reason.startswith("Python 3.")


def test_without_torch_the_probe_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "flashinfer_bench.compile.machine.find_spec",
        lambda name: None if name == "torch" else find(name),
    )
    answer = probe()
    assert not answer.ok
    assert "torch is not installed" in answer.reason
    assert "pip install" in answer.remedy
