"""Scores compare with the baseline of a definition: whether there is one, and it has run.

To lack one is no damage: datasets grow, and are merged with others that have none. Only two
are an error, as nothing says which of them counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.validate.findings import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.validate.findings import Finding
    from flashinfer_bench.validate.records import Contents, Record

NAME = "baseline"
AUTHOR = "baseline"

# By definition: the workloads that the baseline has passed, and those that others have run.
_Facts = tuple[dict[str, set[str]], dict[str, set[str]]]


class BaselineCheck:
    """Finds definitions with no baseline or several, and workloads on which it has not passed.

    A dataset without any solution by the author ``baseline`` has no scores, and no findings here.
    """

    def __init__(self, contents: Contents) -> None:
        self._solutions = contents.solutions
        self._passed: dict[str, set[str]] = {}
        self._run: dict[str, set[str]] = {}

    def visit(self, record: Record) -> Iterator[Finding]:
        """Remember one trace of a run."""
        trace = record.trace
        known = self._solutions.get(trace.solution) if trace.solution is not None else None
        if known is not None and known.author != AUTHOR:
            self._run.setdefault(trace.definition, set()).add(trace.workload.uuid)
        elif known is not None and trace.is_successful():
            self._passed.setdefault(trace.definition, set()).add(trace.workload.uuid)
        yield from ()

    def facts(self) -> _Facts:
        """Return the workloads that were passed and run."""
        return self._passed, self._run

    @classmethod
    def combine(cls, facts: list[_Facts], contents: Contents) -> Iterator[Finding]:
        """Tell of each definition whose solutions cannot be scored."""
        baselines: dict[str, list[Place]] = {}
        for head, place in contents.solution_files:
            if head.author == AUTHOR:
                baselines.setdefault(head.definition, []).append(place)
        if not baselines:
            return
        yield from _check_number(baselines, contents)
        passed, run = _merged(facts, 0), _merged(facts, 1)
        for definition, at in contents.definition_files:
            left = sorted(run.get(definition.name, set()) - passed.get(definition.name, set()))
            if left and definition.name in baselines:
                yield Place(NAME, at.path).note(
                    f"the baseline has not passed on {len(left)} workloads that others have run; "
                    f"they count in no score. The first is {left[0]}"
                )


def _check_number(baselines: dict[str, list[Place]], contents: Contents) -> Iterator[Finding]:
    solved = {head.definition for head, _ in contents.solution_files}
    for definition, at in contents.definition_files:
        places = baselines.get(definition.name, [])
        if len(places) > 1:
            message = f"{definition.name!r} has a baseline already: {places[0].path}"
            hint = "scores need one; give all but one of them another author"
            yield Place(NAME, places[1].path).error(message, "author", hint)
        elif not places and definition.name in solved:
            message = "it has solutions and no baseline, so none of them has a score"
            hint = f"a baseline is a solution by the author {AUTHOR!r}"
            yield Place(NAME, at.path).note(message, hint=hint)


def _merged(facts: list[_Facts], which: int) -> dict[str, set[str]]:
    merged: dict[str, set[str]] = {}
    for one in facts:
        for name, uuids in one[which].items():
            merged.setdefault(name, set()).update(uuids)
    return merged
