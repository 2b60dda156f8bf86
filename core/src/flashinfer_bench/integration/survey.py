"""Looking at all adapters without anything being applied or traced."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.integration.chosen import Chosen
from flashinfer_bench.integration.patch_manager import PatchManager
from flashinfer_bench.integration.status import PatchStatus
from flashinfer_bench.integration.targets import version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.integration.adapter import PatchSpec
    from flashinfer_bench.integration.chosen import Selection
    from flashinfer_bench.plugins import Catalog

_ANYTHING = (Exception, SystemExit)
_LATER = "patched when it is imported, while a definition that it routes is applied or traced"


@dataclass(frozen=True)
class Surveyed:
    """One target, as `fib adapters list` shows it.

    Parameters
    ----------
    status : PatchStatus
        What became of it, or would.
    definitions : tuple of str
        Patterns of the definitions that its calls can be of; empty if they are not known.
    provided_by : str
        The distribution that has the adapter, and its version.
    """

    status: PatchStatus
    definitions: tuple[str, ...]
    provided_by: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        rest = {"definitions": list(self.definitions), "provided_by": self.provided_by}
        return self.status.as_dict() | rest


def survey(catalog: Catalog, selection: Selection, *, check: bool = False) -> list[Surveyed]:
    """Return what there is to say of each target of each adapter.

    Parameters
    ----------
    catalog : Catalog
        The plugins.
    selection : Selection
        Which adapters the user wants.
    check : bool
        Whether to import the libraries, patch every target, and restore it. Otherwise no library is
        imported, and what is installed counts as good.

    Returns
    -------
    list of Surveyed
        In the order of selection. Refused adapters, whose name is claimed twice, come last.
    """
    found: list[Surveyed] = []
    manager = PatchManager()
    try:
        for entry in catalog.adapters:
            found += _of_adapter(Chosen(entry), selection, manager if check else None)
    finally:
        manager.unpatch_all()
    for conflict in catalog.conflicts:
        if conflict.kind == "adapter":
            for claim in conflict.claims:
                statuses = Chosen(claim).statuses("failed", conflict.sentence())
                found += _surveyed(statuses, {}, claim.origin)
    return found


def _of_adapter(
    chosen: Chosen, selection: Selection, manager: Optional[PatchManager]
) -> list[Surveyed]:
    origin = chosen.entry.origin
    refusal = selection.refusal(chosen.name)
    if refusal is not None:
        return _surveyed(chosen.statuses("off", refusal), {}, origin)
    absent = _absent(chosen.libraries, import_them=manager is not None)
    if absent:
        return _surveyed(chosen.statuses("missing", absent), {}, origin)
    orders = chosen.orders(late=manager is not None)
    specs = {order.spec.path: order.spec for order in orders}
    if chosen.problem is not None:
        return _surveyed(chosen.statuses(*chosen.problem), {}, origin)
    if manager is not None:
        return _surveyed(manager.patch_all(orders), specs, origin)
    statuses = [PatchStatus(path, chosen.name, "waiting", _LATER) for path in specs]
    late = [PatchStatus(p, chosen.name, "waiting", _LATER) for p in chosen.paths if p not in specs]
    return _surveyed([*statuses, *late], specs, origin)


def _absent(libraries: Sequence[str], *, import_them: bool) -> str:
    """Return which library is not there, and why; empty if all are."""
    for library in libraries:
        try:
            if import_them:
                importlib.import_module(library)
            elif importlib.util.find_spec(library) is None:
                return f"{library} is not installed"
        except ModuleNotFoundError as error:
            if error.name == library:
                return f"{library} is not installed"
            return f"{library} cannot be imported: {error}"
        except _ANYTHING as error:  # a library may raise anything when it is imported
            return f"{library} cannot be imported: {type(error).__name__}: {error}"
    return ""


def _surveyed(
    statuses: Iterable[PatchStatus], specs: Mapping[str, PatchSpec], origin: str
) -> list[Surveyed]:
    return [
        Surveyed(_dated(each), specs[each.path].definitions if each.path in specs else (), origin)
        for each in statuses
    ]


def _dated(status: PatchStatus) -> PatchStatus:
    """Return a status with the version of the library, which is imported or only installed."""
    library = status.path.partition(".")[0]
    version = status.version or version_of(library) or _installed_version(library)
    return replace(status, version=version)


@lru_cache(maxsize=64)
def _installed_version(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    for name in packages_distributions().get(library, [library]):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
