"""Looking closer at one plugin than discovery does: what ``fib plugins doctor`` reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flashinfer_bench._version import __version__
from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins._messages import canonical, full_traceback, one_line
from flashinfer_bench.plugins.registry import CORE_DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flashinfer_bench.plugins.manager import Settings
    from flashinfer_bench.plugins.registry import Catalog, PluginStatus, Registered


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a plugin.

    Parameters
    ----------
    message : str
        Reads on after the plugin's name.
    traceback : str
        Where it was raised; may be empty.
    """

    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Checkup:
    """One plugin after a closer look.

    Parameters
    ----------
    status : PluginStatus
        As in `Catalog.survey`, and ``broken`` with all reasons if there are problems.
    problems : tuple of Problem
        What is wrong; empty for a plugin in good order, or blocked.
    notes : tuple of str
        What is worth knowing but not wrong.
    """

    status: PluginStatus
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def check_up(catalog: Catalog, status: PluginStatus) -> Checkup:
    """Look closer at one plugin: its requirements, its probes, and whether its code imports.

    Unlike discovery this imports the code of each record that can be used here, which may take
    seconds and bring in torch.

    Parameters
    ----------
    catalog : Catalog
        Where its records are.
    status : PluginStatus
        The plugin, from `Catalog.survey`.

    Returns
    -------
    Checkup
        What was found.
    """
    if status.state == "blocked":
        return Checkup(status)
    problems = [Problem(status.reason, status.traceback)] if status.state == "broken" else []
    problems += [Problem(message) for message in _unmet_requirements(status.distribution)]
    mine = catalog.from_plugin(status)
    problems += [problem for entry in mine for problem in _code_problems(entry)]
    if problems:
        reason = "; ".join(problem.message for problem in problems)
        status = replace(status, state="broken", reason=reason)
    return Checkup(status, tuple(problems), tuple(_notes(status, mine)))


def idle_names(settings: Settings, plugins: Iterable[PluginStatus]) -> list[str]:
    """Return the names in ``FIB_DISABLE_PLUGINS`` that no plugin has, in their order.

    Parameters
    ----------
    settings : Settings
        What the user asked for.
    plugins : iterable of PluginStatus
        All that there are.
    """
    known = {canonical(name) for each in plugins for name in (each.name, each.distribution)}
    return [name for name in settings.disabled if canonical(name) not in known]


def _unmet_requirements(distribution: str) -> Iterator[str]:
    """Yield what a distribution requires of core, where this core does not meet it."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        texts = (requires(distribution) or []) if distribution else []
    except PackageNotFoundError:
        return
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            yield f"has a requirement that cannot be read: {text!r} ({error})".replace("\n", " ")
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ours = applies and canonical(requirement.name) == CORE_DISTRIBUTION
        if ours and not requirement.specifier.contains(__version__, prereleases=True):
            yield f"requires {requirement}, and this is {CORE_DISTRIBUTION} {__version__}"


def _code_problems(entry: Registered[Any]) -> Iterator[Problem]:
    if not entry.availability():
        if entry.check is not None and entry.check.failure is not None:
            yield Problem(
                f"provides {entry.label}, but {entry.availability().reason}",
                full_traceback(entry.check.failure),
            )
        return
    for path in entry.spec.paths:
        try:
            entry.load(path)
        except PluginLoadError as error:
            cause = error.__cause__ or error
            message = f"provides {entry.label}, which cannot be imported: {one_line(cause)}"
            yield Problem(message, full_traceback(cause))


def _notes(status: PluginStatus, entries: Iterable[Registered[Any]]) -> Iterator[str]:
    if status.heavy_imports:
        names = ", ".join(status.heavy_imports)
        yield f"loading it imports {names}, which slows down every start: import in the factory"
    for entry in entries:
        answer = entry.availability()
        failed = entry.check is not None and entry.check.failure is not None
        if not answer and not failed:
            remedy = f" ({answer.remedy})" if answer.remedy else ""
            yield f"{entry.label} cannot be used here: {answer.reason}{remedy}"
