"""Evaluators: the rules by which outputs are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench._lazy import old_names
from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.plugins import Catalog, default_catalog

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition

__getattr__ = old_names(__name__)

__all__ = ["Check", "DefaultEvaluator", "Evaluator", "Trial", "resolve_evaluator"]


def resolve_evaluator(
    definition: Definition, name: Optional[str] = None, *, catalog: Optional[Catalog] = None
) -> Evaluator:
    """Return the evaluator that judges solutions of `definition`.

    Parameters
    ----------
    definition : Definition
        Its name and operation type decide.
    name : str, optional
        Take the evaluator of that name instead.
    catalog : Catalog, optional
        Where to look; by default everything that is installed.

    Raises
    ------
    CapabilityError
        If there is none of that name, or none for this definition.
    PluginLoadError
        If what is registered is not an `Evaluator`, or cannot be imported.
    """
    catalog = default_catalog() if catalog is None else catalog
    entry = catalog.find("evaluator", name) if name else catalog.select_evaluator(definition)
    return entry.load_subclass(Evaluator)()  # type: ignore[type-abstract]
