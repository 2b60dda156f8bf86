"""What earlier releases listed: modules, names, parameters, their order and defaults.

Each line of the listings is ``module:name`` or ``module:name(parameters)``; a default of ``...``
says that there is one. A name that is listed is there, and takes these parameters, or has its
reason below.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flashinfer_bench.compat.table import PARAMETERS
from flashinfer_bench.compile import Builder, BuilderRegistry, Runnable, RunnableMetadata
from flashinfer_bench.data import (
    AxisVar,
    BuildSpec,
    Definition,
    Environment,
    Evaluation,
    Trace,
    TraceSet,
    Workload,
)

HERE = Path(__file__).parent
LISTINGS = {
    name: (HERE / f"{name}.txt").read_text().splitlines()
    for name in ("first_release", "later_releases")
}

_INNER = "inner parts; inputs and outputs of the reference are the judge's alone"
_BY_POSITION = "what is given in the old order is told apart by its type"
_FAMILIES = "all are found through the toolkits that are installed"

# By what is listed, as a pattern: why it is not there, or not the same.
REASONS = {
    "apply.api:apply(def_name_or_resolver, runtime_kwargs*": _BY_POSITION,
    "apply.key:*.features(runtime_kwargs)": "by name only in subclasses that are written so",
    "apply.runtime:ApplyRuntime.dispatch(def_name, runtime_kwargs*": _BY_POSITION,
    "data.json_codec:load_json*_file(path, cls)": _BY_POSITION,
    "cli:cli": "a module of that name in later releases; the function is cli.main.cli",
    "bench.benchmark:Benchmark.__init__(trace_set, log_level*": _BY_POSITION,
    "compile.runnable:Runnable.__init__(fn, closer*": _BY_POSITION,
    "tracer.tracer:enable_tracing(rules=*": _BY_POSITION,
    "apply:ApplyConfig(max_atol=0.01, max_rtol=1e-05*": "None: bounds by dtype",
    "bench.runner:DeviceBaseline.*_dev": _INNER,
    "bench.runner:DeviceBaseline.ref_mean_latency_ms": _INNER,
    "bench.runner:Runner.__init__(device, log_dir*": "logs are in the traces",
    "cli.main:*(args)": "took the namespace of a parser that is no more; the commands are there",
    "cli.main:*tracesets(*": "as above: `fib report merge`",
    "cli.main:export_traceset(*": "as above: `fib report merge`",
    "compile.builders.cuda_builder:CUDA_*": _FAMILIES,
}


class OwnBuilder(Builder):
    """A builder like any other."""

    def can_build(self, solution):
        return True

    def build(self, definition, solution):
        raise NotImplementedError


def instances() -> dict[type, Any]:
    """Objects of the classes whose attributes are looked up in them."""
    from flashinfer_bench.bench import IsolatedRunner, PersistentRunner
    from flashinfer_bench.bench.measurement import DeviceBaseline
    from flashinfer_bench.compile.builders import TorchBuilder
    from flashinfer_bench.tracing import TracingConfig

    tensor = {"shape": ["n"], "dtype": "float32"}
    definition = Definition(
        name="d",
        op_type="op",
        axes={"n": {"type": "var"}},
        inputs={"x": tensor},
        outputs={"y": tensor},
        reference="def run(x):\n    return x\n",
    )
    workload = Workload(axes={"n": 2}, inputs={"x": {"type": "random"}}, uuid="w")
    metadata = RunnableMetadata(build_type="t", definition_name="d", solution_name="s")
    spec = {"language": "python", "target_hardware": ["cpu"], "entry_point": "m.py::run"}
    evaluation = Evaluation(
        status="RUNTIME_ERROR", environment=Environment(hardware="cpu"), timestamp="2026-01-01"
    )
    given: dict[str, Any] = dict.fromkeys(DeviceBaseline.__dataclass_fields__)
    found = (
        definition,
        AxisVar(),
        BuildSpec(**spec),
        Trace(definition="d", workload=workload),
        TraceSet(),
        Runnable(len, metadata),
        BuilderRegistry([OwnBuilder()]),
        OwnBuilder(),
        PersistentRunner("cpu"),
        IsolatedRunner("cpu"),
        TorchBuilder(),
        TracingConfig(),
        DeviceBaseline(**{**given, "definition": definition, "workload": workload}),
        evaluation,
    )
    return {type(one): one for one in found}


def look_up(path: str, objects: dict[type, Any]) -> Any:
    module, _, names = path.partition(":")
    found: Any = import_module(".".join(filter(None, ("flashinfer_bench", module))))
    for name in names.split("."):
        fields = getattr(found, "model_fields", getattr(found, "__dataclass_fields__", {}))
        if name in fields:
            return fields[name]
        if inspect.isclass(found) and not hasattr(found, name):
            same = [one for kind, one in objects.items() if issubclass(kind, found)]
            found = same[0] if same else found
        found = getattr(found, name)
    return found


def parameters_of(text: str) -> tuple[dict[str, str | None], int]:
    """Return the listed parameters with their defaults, and how many may go by position."""
    found: dict[str, str | None] = {}
    count = None
    for part in re.split(r", (?![^\[{(]*[\]})])", text):
        name, _, default = part.partition("=")
        if name.startswith("*"):
            count = len(found) if count is None else count
        elif name:
            found[name] = default or None
    return found, len(found) if count is None else count


def old_names_of(function: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    bases = getattr(function, "__mro__", ())
    for code in (function, *(vars(base).get("__init__") for base in bases)):
        path = f"{getattr(code, '__module__', '')}:{getattr(code, '__qualname__', '')}"
        path = path.removeprefix("flashinfer_bench.")
        method = path.rpartition(".")[2]
        inherited = PARAMETERS.get(f"compile.builder:Builder.{method}", "")
        found.update(one.split("=") for one in PARAMETERS.get(path, inherited).split())
    return found


def problems(line: str, objects: dict[type, Any]) -> list[str]:
    path, called, text = line.removesuffix(")").partition("(")
    try:
        found = look_up(path, objects)
    except (AttributeError, ImportError) as error:
        return [f"is not there: {error}"]
    if not called or not callable(found):
        return [] if not called else ["cannot be called"]
    wanted, by_position = parameters_of(text)
    own = {
        name: each for name, each in inspect.signature(found).parameters.items() if name != "self"
    }
    renamed, told = old_names_of(found), []
    names = {name: renamed.get(name, name) if name not in own else name for name in wanted}
    for index, (name, default) in enumerate(wanted.items()):
        each = own.get(names[name])
        if each is None:
            if names[name]:  # else it counts for nothing
                told.append(f"takes no {name}")
        elif (
            index < by_position
            and not hasattr(found, "model_fields")  # which are made by name
            and (each.kind is each.KEYWORD_ONLY or [*own].index(each.name) != index)
        ):
            told.append(f"takes {name} in another place")
        if each is None or default is None:
            continue
        if each.default is each.empty:
            told.append(f"has no default for {name}")
        elif default != "..." and not same_default(each.default, default):
            told.append(f"has another default for {name}: {each.default!r}")
    for name, each in own.items():
        variable = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if each.default is each.empty and not variable and name not in names.values():
            told.append(f"needs {name}")
    return told


def same_default(value: Any, listed: str) -> bool:
    try:
        if str(value) == "<factory>":
            value = type(ast.literal_eval(listed))()
        return bool(value == ast.literal_eval(listed))
    except (ValueError, SyntaxError):  # an object: there is no telling
        return True


def reason_of(line: str) -> str | None:
    return next((why for what, why in REASONS.items() if fnmatchcase(line, what)), None)


@pytest.mark.parametrize("listing", LISTINGS)
def test_what_was_listed_is_there(listing: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objects = instances()
        told = [
            f"{line}: {'; '.join(found)}"
            for line in LISTINGS[listing]
            if (found := problems(line, objects)) and reason_of(line) is None
        ]
    assert not told, "\n".join(told)


@pytest.mark.parametrize("what", REASONS)
def test_reasons_are_for_what_is_not_there(what: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objects = instances()
        lines = [each for all_of in LISTINGS.values() for each in all_of if fnmatchcase(each, what)]
        assert lines
        assert all(problems(line, objects) for line in lines)


def test_all_45_modules_of_the_first_release() -> None:
    modules = (HERE / "first_release_modules.txt").read_text().split()
    assert len(modules) == 45
    for name in modules:
        import_module(name)
