"""Functions of earlier releases that have no counterpart of the same parameters."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from flashinfer_bench.bench.measurement import BaselineHandle
from flashinfer_bench.compile import RunnableMetadata
from flashinfer_bench.compile.builder import package_name, write_sources
from flashinfer_bench.data import Definition, DType
from flashinfer_bench.errors import RunnerError
from flashinfer_bench.tensors.devices import list_cuda_devices
from flashinfer_bench.tracing.policies import DUMPS, InputDumpPolicy, PolicyRegistry, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.session import Runner
    from flashinfer_bench.compile import Builder, Runnable
    from flashinfer_bench.data import Evaluation, Solution, SourceFile, Workload
    from flashinfer_bench.tracing import FilterPolicy, TracingConfig

ALLOWED_DTYPES = frozenset(dtype.value for dtype in DType)


def create_pkg_name(sol: Solution, prefix: str = "") -> str:
    """Return a name for a solution's build that is a valid Python identifier."""
    return package_name(prefix.strip("_"), sol, sol.hash()[:8])


def write_sources_to_dir(dir: str, sources: Iterable[SourceFile]) -> None:
    """Write sources below a folder; see `flashinfer_bench.compile.builder.write_sources`."""
    write_sources(Path(dir), sources)


def write_sources_to_temp(
    base: str, sources: Iterable[SourceFile], pkg: Optional[str] = None
) -> str:
    """Write sources into a new folder below `base`, or into its folder `pkg`; return that."""
    Path(base).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(dir=base)
    root = Path(folder, pkg) if pkg else Path(folder)
    write_sources(root, sources)
    return str(root)


def runnable_parts(one: Any, other: Any) -> tuple[RunnableMetadata, Any]:
    """Return metadata and cleaner of a `Runnable`, from a mapping and a closer in either order."""
    meta, cleaner = (one, other) if isinstance(one, dict) else (other, one)
    if not isinstance(meta, (dict, type(None))) or not (cleaner is None or callable(cleaner)):
        raise TypeError(f"metadata={one!r} is not allowed; give a RunnableMetadata")
    named = {"build_type": "", "definition_name": "", "solution_name": ""}
    return RunnableMetadata(**named, destination_passing_style=False, misc=meta or {}), cleaner


def renamed_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run without those that have gone, or moved to an op family."""
    named = {name: value for name, value in values.items() if name != "log_dir"}
    moved = ("sampling_validation_trials", "sampling_tvd_threshold")
    extra = {name: named.pop(name) for name in moved if name in named}
    if extra:
        families = dict(named.get("op_type_config") or {})
        family = families.get("sampling") or {}
        own = family if isinstance(family, dict) else family.given()
        families["sampling"] = {**own, "extra": {**extra, **own.get("extra", {})}}
        named["op_type_config"] = families
    return named


def bare_definition(named: Any) -> Definition:
    """Return a definition of which nothing is known but its name and op type."""
    nothing: dict[str, Any] = {"axes": {}, "inputs": {}, "outputs": {}}
    reference = "def run():\n    return ()\n"
    return Definition(name=named.name, op_type=named.op_type, reference=reference, **nothing)


def is_cuda_available() -> bool:
    """Return whether there is a GPU that torch can use."""
    return bool(list_cuda_devices())


class _DumpPolicy(InputDumpPolicy):
    """Which inputs are dumped, as a class; registered ones are functions."""

    name: ClassVar[str]

    def get_inputs_to_dump(self, inputs: Mapping[str, Any]) -> list[str]:
        """Return the names of those inputs that are written."""
        dtypes = DUMPS[self.name]
        wanted = None if dtypes is None else {f"torch.{dtype}" for dtype in dtypes}
        tensors = {name: str(value.dtype) for name, value in inputs.items() if not is_number(value)}
        return [name for name, dtype in tensors.items() if wanted is None or dtype in wanted]


class DumpNonePolicy(_DumpPolicy):
    """Dumps nothing."""

    name = "dump_none"


class DumpAllPolicy(_DumpPolicy):
    """Dumps all tensors."""

    name = "dump_all"


class DumpInt32Policy(_DumpPolicy):
    """Dumps tensors of 32-bit integers."""

    name = "dump_int32"


class DumpIntegersPolicy(_DumpPolicy):
    """Dumps tensors of integers."""

    name = "dump_integers"


# ------------------------------------------------------------------------ methods of objects


def create_filter_policy(config: TracingConfig) -> FilterPolicy:
    """Return a new filter policy; see `PolicyRegistry.make_filter_policy`."""
    return PolicyRegistry.make_filter_policy(config)


def create_input_dump_policy(config: TracingConfig) -> Any:
    """Return the function that picks the inputs to dump."""
    wanted = config.input_dump_policy
    if isinstance(wanted, list):
        return lambda inputs: [name for name in wanted if name in inputs]
    builtin = {kind.name: kind for kind in _DumpPolicy.__subclasses__()}
    if isinstance(wanted, str) and wanted in builtin:
        return builtin[wanted]()
    return PolicyRegistry.picking(config)


def get_inputs_to_dump(config: TracingConfig, inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs that are dumped of a call."""
    return list(create_input_dump_policy(config)(inputs))


class _Baseline(BaselineHandle):
    """Names a workload that solutions are to run on."""

    task: tuple[Definition, Workload, Optional[Path]]


def run_ref(
    runner: Runner,
    defn: Definition,
    workload: Workload,
    cfg: BenchmarkConfig,
    traceset_root: Optional[Path] = None,
) -> BaselineHandle:
    """Return what `run_solution` takes; the reference runs with the first solution."""
    handle = _Baseline(f"{defn.name}/{workload.uuid}")
    handle.task = (defn, workload, traceset_root)
    return handle


def run_solution(
    runner: Runner, sol: Solution, baseline: BaselineHandle, cfg: BenchmarkConfig
) -> Evaluation:
    """Evaluate one solution on the workload of `run_ref`; see `Runner.run_workload`."""
    assert isinstance(baseline, _Baseline), "a baseline is what run_ref returned"
    definition, workload, root = baseline.task
    found = runner.run_workload(definition, workload, [sol], cfg, root)
    if sol.name not in found:
        raise RunnerError(f"solution {sol.name!r} cannot be built here")
    return found[sol.name]


def release(runner: Runner, baseline: BaselineHandle) -> None:
    """Do nothing: nothing is held for a baseline between two solutions."""


def clear_cache(builder: Builder) -> None:
    """Do nothing: what has been built is held by the registry, see `BuilderRegistry.cleanup`."""


def call_dest(runnable: Runnable, *args: Any, **kwargs: Any) -> None:
    """Call with inputs and outputs, by position or by name."""
    definition = runnable.metadata.definition
    if definition is not None:
        args = tuple(definition.merge_kwargs_to_args(args, kwargs))
    runnable.call_destination_passing(*args)
