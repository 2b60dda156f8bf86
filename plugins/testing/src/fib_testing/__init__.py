"""The conformance kit: pytest suites that check whether a plugin keeps to its contract.

Subclass a suite, give it one fixture called ``case``, and run pytest:

=========================  =========================================================================
`PluginConformance`        a whole plugin: a `PluginCase`, or just its name
`BuilderConformance`       a builder: a `BuilderCase` with a correct solution
`TimerConformance`         a timing backend: a `TimerCase`
`EvaluatorConformance`     an evaluator: an `EvaluatorCase` with a definition
`KeyBuilderConformance`    a key builder: a `KeyBuilderCase` with a definition
`AdapterConformance`       an API adapter: an `AdapterCase`
=========================  =========================================================================

Executors and commands are covered by `PluginConformance`. A failed test says what is wrong, why it
matters and what to do; a test that is not applicable is skipped with a reason (``pytest -ra``).
"""

from __future__ import annotations

from fib_testing.adapters import AdapterCase, AdapterConformance
from fib_testing.builder_kit import BuilderCase, FailingSolution
from fib_testing.builders import BuilderConformance
from fib_testing.evaluators import EvaluatorCase, EvaluatorConformance
from fib_testing.keys import KeyBuilderCase, KeyBuilderConformance
from fib_testing.plugins import PluginCase, PluginConformance
from fib_testing.sample_calls import SampleCall
from fib_testing.samples import make_solution, sample_definition
from fib_testing.timers import TimerCase, TimerConformance

__all__ = [
    "AdapterCase",
    "AdapterConformance",
    "BuilderCase",
    "BuilderConformance",
    "EvaluatorCase",
    "EvaluatorConformance",
    "FailingSolution",
    "KeyBuilderCase",
    "KeyBuilderConformance",
    "PluginCase",
    "PluginConformance",
    "SampleCall",
    "TimerCase",
    "TimerConformance",
    "make_solution",
    "sample_definition",
]
