"""The side channel: solutions and fallbacks say here that they ran, and do here what they do.

The source of each solution is one line that calls `answer` with its name. How it behaves is set
from outside, so that one dataset serves for many kinds of misbehaviour.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.apply_faults.problems import expected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apply_faults.problems import Problem

NAME = "apply_faults_channel"  # as solutions import it
FALLBACK = "the fallback"

FAILING = ("raise", "dtype")
"""Behaviours that nobody can miss."""

WRONG = "value"
"""The behaviour that only a comparison with the fallback can find."""


@dataclass(frozen=True)
class Behaviour:
    """What a solution does once it has been called `after` times."""

    kind: str = "honest"
    after: int = 0


class _Ran(threading.local):
    """Who ran, in the order of their calls; one list for each thread."""

    def __init__(self) -> None:
        self.names: list[str] = []


problems: dict[str, Problem] = {}
behaviours: dict[str, Behaviour] = {}
calls: Counter[str] = Counter()
_ran = _Ran()
_lock = threading.Lock()


def install() -> None:
    """Let solutions import this module."""
    sys.modules[NAME] = sys.modules[__name__]


def reset(*known: Problem) -> None:
    """Forget all that has happened, and learn the problems that will be solved."""
    install()
    problems.clear()
    problems.update((problem.name, problem) for problem in known)
    behaviours.clear()
    calls.clear()
    _ran.names.clear()


def take() -> list[str]:
    """Return who ran in this thread since the last time that it was asked."""
    names = list(_ran.names)
    _ran.names.clear()
    return names


def note(name: str) -> int:
    """Write down that `name` runs; return how often it has run."""
    _ran.names.append(name)
    with _lock:
        calls[name] += 1
        return calls[name]


def answer(name: str, definition: str, *inputs: Any) -> Any:
    """Be the solution `name`: return the right outputs, or misbehave."""
    due = _due(name)
    if due == "raise":
        raise RuntimeError(f"{name} was told to raise")
    results = expected(problems[definition], inputs)
    spoilt = [_spoilt(due, result) for result in results]
    return spoilt[0] if len(spoilt) == 1 else tuple(spoilt)


def answer_into(name: str, definition: str, *args: Any) -> None:
    """Be the destination-passing solution `name`: what cannot be written is raised."""
    problem = problems[definition]
    due = _due(name)
    inputs, outputs = args[: len(problem.inputs)], args[len(problem.inputs) :]
    for place, (output, result) in enumerate(zip(outputs, expected(problem, inputs), strict=True)):
        if due in FAILING and place == len(outputs) - 1:
            output.fill_(99)  # half of the work is done, and wrong
            raise RuntimeError(f"{name} was told to raise")
        output.copy_(_spoilt(due, result))


def _due(name: str) -> str:
    count = note(name)
    behaviour = behaviours.get(name, Behaviour())
    return behaviour.kind if count > behaviour.after else "honest"


def _spoilt(kind: str, result: Any) -> Any:
    import torch

    if kind == "dtype":
        return result.to(torch.float64)
    if kind == WRONG:
        return result + 1 if result.dtype != torch.bool else ~result
    return result


def solution_source(
    name: str, definition: str, inputs: Sequence[str], outputs: Sequence[str]
) -> str:
    """Return the code of a solution; with `outputs` it is destination-passing."""
    parameters = ", ".join((*inputs, *outputs))
    function = "answer_into" if outputs else "answer"
    return (
        "import sys\n"
        f"def run({parameters}):\n"
        f"    return sys.modules[{NAME!r}].{function}({name!r}, {definition!r}, {parameters})\n"
    )
