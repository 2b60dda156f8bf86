"""The conformance kit: proof that a plugin keeps to its contract, with pytest.

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
matters and what to do; one that cannot say anything is skipped, with the reason (``pytest -ra``).

``pip install "flashinfer-bench-core[testing]"`` brings pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashinfer_bench.testing.adapter_kit import AdapterCase as AdapterCase
    from flashinfer_bench.testing.adapters import AdapterConformance as AdapterConformance
    from flashinfer_bench.testing.builders.case import BuilderCase as BuilderCase
    from flashinfer_bench.testing.builders.case import FailingSolution as FailingSolution
    from flashinfer_bench.testing.builders.suite import BuilderConformance as BuilderConformance
    from flashinfer_bench.testing.evaluator_kit import EvaluatorCase as EvaluatorCase
    from flashinfer_bench.testing.evaluators import EvaluatorConformance as EvaluatorConformance
    from flashinfer_bench.testing.keys import KeyBuilderCase as KeyBuilderCase
    from flashinfer_bench.testing.keys import KeyBuilderConformance as KeyBuilderConformance
    from flashinfer_bench.testing.plugins import PluginCase as PluginCase
    from flashinfer_bench.testing.plugins import PluginConformance as PluginConformance
    from flashinfer_bench.testing.samples import make_solution as make_solution
    from flashinfer_bench.testing.samples import sample_definition as sample_definition
    from flashinfer_bench.testing.timer_kit import TimerCase as TimerCase
    from flashinfer_bench.testing.timers import TimerConformance as TimerConformance

_HERE = "flashinfer_bench.testing"

_EXPORTS = {
    "AdapterCase": f"{_HERE}.adapter_kit",
    "AdapterConformance": f"{_HERE}.adapters",
    "BuilderCase": f"{_HERE}.builders.case",
    "BuilderConformance": f"{_HERE}.builders.suite",
    "EvaluatorCase": f"{_HERE}.evaluator_kit",
    "EvaluatorConformance": f"{_HERE}.evaluators",
    "FailingSolution": f"{_HERE}.builders.case",
    "KeyBuilderCase": f"{_HERE}.keys",
    "KeyBuilderConformance": f"{_HERE}.keys",
    "PluginCase": f"{_HERE}.plugins",
    "PluginConformance": f"{_HERE}.plugins",
    "TimerCase": f"{_HERE}.timer_kit",
    "TimerConformance": f"{_HERE}.timers",
    "make_solution": f"{_HERE}.samples",
    "sample_definition": f"{_HERE}.samples",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    # Late, so that the kit's own child processes import no pytest.
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ImportError(
            f"{name} needs pytest: pip install 'flashinfer-bench-core[testing]'", name=__name__
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
