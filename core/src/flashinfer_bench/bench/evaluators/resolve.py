"""Which evaluator judges a definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.evaluators.base import Evaluator
from flashinfer_bench.errors import PluginLoadError

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition
    from flashinfer_bench.plugins import Catalog


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
    from flashinfer_bench.plugins import default_catalog

    catalog = default_catalog() if catalog is None else catalog
    if name is None:
        registered = catalog.select_evaluator(definition)
    else:
        registered = catalog.find("evaluator", name)
    factory = registered.load()
    if not (isinstance(factory, type) and issubclass(factory, Evaluator)):
        raise PluginLoadError(
            f"evaluator {registered.spec.name!r} of {registered.origin}: "
            f"{registered.spec.factory} is not a subclass of Evaluator"
        )
    return factory()
