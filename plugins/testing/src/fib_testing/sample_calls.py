"""Calls of a library that solutions answer, compared with calls of the original."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_testing.records import in_short, must_work
from fib_testing.samples import difference_of, make_solution
from flashinfer_bench.data import Definition, Trace, TraceSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Arguments = tuple["Sequence[Any]", "Mapping[str, Any]"]

_RUN = {
    "status": "PASSED",
    "timestamp": "2026-01-01T00:00:00",
    "log": "",
    "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
    "performance": {"latency_ms": 1.0, "reference_latency_ms": 1.0, "speedup_factor": 1.0},
}

# Appended to a reference, for a solution whose outputs differ from those of the original.
_DIFFERENT = """
import functools as _functools
from fib_testing.sample_calls import differ as _differ

_reference = run

@_functools.wraps(_reference)
def run(*args, **kwargs):
    return _differ(_reference(*args, **kwargs))
"""


@dataclass(frozen=True, kw_only=True)
class SampleCall:
    """A call of a target of the installed library.

    Parameters
    ----------
    path : str
        The target.
    arguments : callable
        Returns positional and named arguments, including the object of a method: new tensors with
        the same values each time.
    definition : Definition, optional
        The definition of the call, whose reference computes the same as the target. None if the
        call must go to the original.
    """

    path: str
    arguments: Callable[[], Arguments]
    definition: Optional[Definition] = None


class Effects:
    """What a call returned or raised, and which tensors among its arguments it changed.

    Parameters
    ----------
    function : callable
        The function to call.
    call : SampleCall
        Its arguments.
    **more
        Further arguments.
    """

    def __init__(self, function: Callable[..., Any], call: SampleCall, **more: Any) -> None:
        args, kwargs = call.arguments()
        given, before, returned = _tensors([args, kwargs]), _tensors([*call.arguments()]), None
        try:
            returned = function(*args, **kwargs, **more)
            self.form = f"returned {_form(returned, given)}"
        except Exception as error:  # noqa: BLE001 - libraries and plugins may raise anything
            self.form = f"raised {in_short(error)}"
        changed = [n for n, one in enumerate(given) if not _is_equal(one, before[n])]
        self.form += "".join(f", changed {_name(n)}" for n in changed)
        self.values = [*_tensors(returned), *(given[n] for n in changed)]

    def difference(self, expected: Effects, *, is_different: bool = False) -> str:
        """Return how this differs from a call of the original; empty if it does not.

        Parameters
        ----------
        expected : Effects
            A call of the original.
        is_different : bool
            Whether all outputs must be those of a solution with `differ`.
        """
        if self.form != expected.form:
            return f"{self.form}; the original {expected.form}"
        for found, value in zip(self.values, expected.values, strict=True):
            wrong = difference_of(found, differ(value) if is_different else value)
            if wrong:
                return f"{self.form}, with wrong values: {wrong}"
        return ""


@contextmanager
def answered(mode: str, calls: Sequence[SampleCall], *, is_different: bool) -> Iterator[None]:
    """Enable apply with a solution for each definition of `calls`.

    Parameters
    ----------
    mode : str
        ``mapping`` or ``dataset``; a dataset needs the builder for Python, or the test is skipped.
    calls : sequence of SampleCall
        The calls.
    is_different : bool
        Whether outputs of the solutions differ from those of the references, by `differ`.
    """
    from flashinfer_bench.apply import ApplyConfig, enable_apply
    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.compile.toolkit import load_python
    from flashinfer_bench.tensors.devices import this_hardware

    device = str(next(one.device for call in calls for one in _tensors([*call.arguments()])))
    run = {**_RUN, "environment": {"hardware": this_hardware(device), "libs": {}}}
    solved, functions = TraceSet(), {}
    with ExitStack() as stack:
        for given in filter(None, (call.definition for call in calls)):
            # Without its op type, whose key builder may need recorded tensors.
            definition = given.model_copy(update={"op_type": "conformance"})
            solution = make_solution(
                definition, {"main.py": given.reference + _DIFFERENT * is_different},
                "main.py::run", language="python", name=f"solution_of_{given.name}",
                destination_passing_style=False,
            )  # fmt: skip
            solved.definitions[given.name], solved.solutions[given.name] = definition, [solution]
            workload = {"uuid": "w", "axes": dict.fromkeys(definition.var_axes, 1), "inputs": {}}
            record = {"definition": given.name, "solution": solution.name, "workload": workload}
            solved.traces[given.name] = [Trace.model_validate({**record, "evaluation": run})]
            if mode == "mapping":
                loaded = load_python(definition, solution, prefix="fib_conformance")
                stack.callback(loaded.cleaner)
                functions[given.name] = loaded.function
            else:
                with must_work("building solutions in Python", see="the plugin fib-builder-python"):
                    BuilderRegistry.get_instance().build(definition, solution)
        config = ApplyConfig(on_miss_policy="use_def_best")
        if mode == "mapping":
            stack.enter_context(enable_apply(functions, dataset=solved))
        else:
            stack.enter_context(enable_apply(solved, config, device=device))
        yield


def differ(value: Any) -> Any:
    """Return other values: numbers plus 1, and negated booleans, also in tuples and dicts."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(differ, value))
    if isinstance(value, dict):
        return {name: differ(one) for name, one in value.items()}
    return ~value if str(value.dtype) == "torch.bool" else value + 1


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return [one for part in parts for one in _tensors(part)]
    return [value] if hasattr(value, "dtype") and hasattr(value, "shape") else []


def _form(value: Any, given: Sequence[Any]) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(_form(one, given) for one in value)})"
    if not _tensors([value]):
        return repr(value)
    places = [_name(n) for n, one in enumerate(given) if one is value]
    return places[0] if places else f"{value.dtype}{list(value.shape)}"


def _name(number: int) -> str:
    return f"tensor {number + 1} of its arguments"


def _is_equal(one: Any, other: Any) -> bool:
    import torch

    return bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))
