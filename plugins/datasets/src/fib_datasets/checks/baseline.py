"""Checks that each definition has one baseline and that it has passed.

A missing baseline is not an error, because datasets grow and are merged with others. Two baselines
are an error, because it is ambiguous which one counts.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from flashinfer_bench.validate.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.validate.records import Contents, Finding

NAME = "baseline"
AUTHOR = "baseline"


def check_baselines(contents: Contents) -> Iterator[Finding]:
    """Find definitions with no baseline or several, and workloads that the baseline fails.

    A dataset without any solution by the author ``baseline`` has no scores, and no findings here.
    """
    baselines: dict[str, list[Place]] = defaultdict(list)
    solved: set[str] = set()
    for head, place in contents.solution_files:
        solved.add(head.definition)
        if head.author == AUTHOR:
            baselines[head.definition].append(place)
    if not baselines:
        return
    passed: set[tuple[str, str]] = set()
    run: dict[str, set[str]] = defaultdict(set)
    for (name, uuid, solution, status), _ in contents.traces:
        known = contents.solutions.get(solution) if solution is not None else None
        if known is not None and known.author != AUTHOR:
            run[name].add(uuid)
        elif known is not None and status == "PASSED":
            passed.add((name, uuid))
    for definition, at in contents.definition_files:
        name = definition.name
        places, here = baselines.get(name, []), Place(NAME, at.path)
        if len(places) > 1:
            message = f"{name!r} has another baseline: {places[0].path}"
            hint = "scores need exactly one; change the author of the others"
            yield Place(NAME, places[1].path).error(message, "author", hint)
        elif not places and name in solved:
            message = "the definition has solutions but no baseline, so they have no scores"
            hint = f"a baseline is a solution by the author {AUTHOR!r}"
            yield here.note(message, hint=hint)
        left = sorted(uuid for uuid in run[name] if (name, uuid) not in passed)
        if left and places:
            yield here.note(
                f"the baseline has not passed on {len(left)} workloads that others have run, "
                f"which do not count in scores; the first is {left[0]}"
            )
