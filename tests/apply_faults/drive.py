"""Making calls, and judging what happens in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from tests.apply_faults import channel
from tests.apply_faults.oracle import Oracle, Verdict
from tests.apply_faults.problems import expected, make_inputs, make_outputs

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.apply_faults.problems import Problem
    from tests.apply_faults.world import World

    from flashinfer_bench.apply import ApplyConfig, ApplyRuntime

STYLES = ("args", "kwargs", "into", "into by name")


@dataclass
class Tally:
    """What has happened in many calls."""

    calls: int = 0
    hits: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, problem: str, ran: Sequence[str]) -> None:
        """Count a call, and what is wrong with it if something is."""
        self.calls += 1
        self.hits += bool(ran) and ran[-1] != channel.FALLBACK
        if problem:
            self.wrong.append(problem)


class Driver:
    """Calls `apply` for the definitions of a world, and judges each call."""

    def __init__(self, world: World, apply: Callable[..., Any]) -> None:
        self.world = world
        self.oracle = Oracle(world)
        self.apply = apply

    def call(
        self, problem: Problem, values: tuple[int, ...], style: str, rng: random.Random
    ) -> tuple[str, list[str]]:
        """Make one sound call, and hold what happens against the oracle."""
        inputs = make_inputs(problem, problem.sizes(values), rng)
        verdict = self.oracle.verdict(problem.name, values)
        return self.judged(problem, inputs, style, verdict)

    def judged(
        self,
        problem: Problem,
        inputs: list[Any],
        style: str,
        verdict: Verdict,
        judge: Callable[[Verdict, list[str]], str] = Verdict.of_order,
    ) -> tuple[str, list[str]]:
        """Make a call; return what is wrong, and who ran."""
        channel.take()
        wanted = expected(problem, inputs)
        before = [value.clone() if hasattr(value, "clone") else value for value in inputs]
        results = self._made(problem, inputs, style)
        ran = channel.take()
        where = f"{problem.name} {[_describe(value) for value in inputs]} ({style}): "
        changed = _changed(inputs, before)
        for text in (judge(verdict, ran), difference(results, wanted), changed):
            if text:
                return f"{where}{text}; ran: {ran}", ran
        return "", ran

    def _made(self, problem: Problem, inputs: list[Any], style: str) -> list[Any]:
        into = style.startswith("into")
        outputs = make_outputs(problem, _sizes_of(problem, inputs[0])) if into else []
        given, fallback = (*inputs, *outputs), fallback_of(problem)
        if style in ("args", "into"):
            result = self.apply(problem.name, args=given, fallback=fallback)
        else:
            names = [*(each.name for each in problem.inputs), *problem.outputs]
            named = dict(zip(names, given, strict=False))
            result = self.apply(problem.name, kwargs=named, fallback=fallback)
        if into:
            assert result is None, "a destination-passing call returns None"
            return outputs
        return list(result) if len(problem.outputs) > 1 else [result]


def _sizes_of(problem: Problem, first: Any) -> dict[str, int]:
    return dict(zip(problem.inputs[0].axes or (), first.shape, strict=True))


def enable(folder: Path, config: Optional[ApplyConfig] = None) -> ApplyRuntime:
    """Return a runtime for CPU tensors, also on machines with a GPU; to be entered."""
    from flashinfer_bench.apply import ApplyRuntime

    return ApplyRuntime(folder, config, device="cpu")


def fallback_of(problem: Problem) -> Callable[..., Any]:
    """Return the original function of a problem: right for whatever it is given."""
    names = [each.name for each in problem.inputs]

    def fallback(*args: Any, **kwargs: Any) -> Any:
        channel.note(channel.FALLBACK)
        given = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
        inputs, outputs = given[: len(names)], given[len(names) :]
        outputs = outputs or [kwargs[name] for name in problem.outputs if name in kwargs]
        results = expected(problem, inputs)
        for output, result in zip(outputs, results, strict=False):
            output.copy_(result)
        if outputs:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    return fallback


def _changed(inputs: Sequence[Any], before: Sequence[Any]) -> str:
    """Return which input is not what it was."""
    import torch

    for place, (value, old) in enumerate(zip(inputs, before, strict=True)):
        if isinstance(value, torch.Tensor) and not value.is_meta and not torch.equal(value, old):
            return f"input {place} has changed"
    return ""


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype}{list(shape)}"


def difference(results: Sequence[Any], wanted: Sequence[Any]) -> str:
    """Return how results differ from what they should be; empty if they do not."""
    import torch

    if len(results) != len(wanted):
        return f"{len(results)} outputs in place of {len(wanted)}"
    for result, right in zip(results, wanted, strict=True):
        if not isinstance(result, torch.Tensor):
            return f"an output is a {type(result).__name__}"
        if (result.shape, result.dtype) != (right.shape, right.dtype):
            return f"an output is {_describe(result)} in place of {_describe(right)}"
        if not result.is_meta and not torch.equal(result, right):
            return "an output is wrong"
    return ""


def winners(driver: Driver) -> Iterator[tuple[Problem, tuple[int, ...]]]:
    """Yield the calls that hit, if nothing is wrong with them."""
    for problem in driver.world.problems.values():
        for values in driver.world.recorded(problem.name):
            if driver.oracle.verdict(problem.name, values).winner is not None:
                yield problem, values


def strided(problem: Problem, inputs: list[Any], rng: random.Random) -> Optional[list[Any]]:
    """Return the inputs, one of them with gaps; None if it has none for that."""
    import torch

    tensors = [place for place, each in enumerate(problem.inputs) if each.axes is not None]
    place = rng.choice(tensors)
    spread = torch.stack([inputs[place]] * 2, -1)[..., 0]
    return None if spread.is_contiguous() else [*inputs[:place], spread, *inputs[place + 1 :]]
