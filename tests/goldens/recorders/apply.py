"""What apply chooses on generated datasets, at recorded and at other sizes, under each policy."""

from __future__ import annotations

import math
import random
import shutil
from typing import TYPE_CHECKING, Any, Optional

from recorders.common import scratch

if TYPE_CHECKING:
    from pathlib import Path

DATASETS = 1000
POLICIES = ("fallback_only", "use_def_best", "nearest")
SIZES = (1, 2, 4, 8, 16, 64, 256)
OTHER_SIZES = (3, 6, 12, 40, 100, 300)
DTYPES = ("float32", "float32", "bfloat16", "float16")
OP_TYPES = ("op", "gemm", "rmsnorm", "gqa_paged", "mla_paged")
STATUSES = ("INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR",
            "COMPILE_ERROR", "TIMEOUT")  # fmt: skip
ERRORS = (0.0, 0.0, 1e-6, 1e-5, 1e-3, 8e-3, 2e-2, 3e-2, 0.1, 5.0, math.inf, math.nan)
LATENCIES = (0.5, 1.0, 1.0, 1.5, 2.0, 2.5, 4.0)
NOTES = (None, None, None, "clean", {"clean": False}, {"hidden_ms": 2.0, "allowed_ms": 1.0},
         {"floor_ms": 0.9}, {"violation": "cache"}, "suspicious")  # fmt: skip
OTHER_HARDWARE = "Some CPU (96 cores)"


def record(root: Path, datasets: int = DATASETS) -> dict[str, Any]:
    """Return for each generated dataset what is chosen."""
    with scratch() as folder:
        return {f"{seed:04}": _dataset_entry(seed, folder / "dataset") for seed in range(datasets)}


class Maker:
    """Makes the records of one dataset, from a seed."""

    def __init__(self, seed: int) -> None:
        import torch

        from flashinfer_bench import data
        from flashinfer_bench.utils import hardware_from_device

        self.data = data
        self.random = random.Random(seed)
        self.here = hardware_from_device("cpu")
        self.torch_version = torch.__version__
        count = self.random.randint(1, 3)
        self.definitions = {f"d{n}": self._definition(f"d{n}") for n in range(count)}
        self.solutions = {
            name: [self._solution(name, n) for n in range(self.random.randint(1, 6))]
            for name in self.definitions
        }
        self.workloads = {
            name: [self._workload(one, f"{name}w{n}") for n in range(self.random.randint(1, 5))]
            for name, one in self.definitions.items()
        }
        self.traces = {name: self._traces(name) for name in self.definitions}
        self._settings_seed = self.random.random()

    def one_in(self, count: int) -> bool:
        return self.random.randrange(count) == 0

    def _definition(self, name: str) -> Any:
        dtype, op_type = self.random.choice(DTYPES), self.random.choice(OP_TYPES)
        axes: dict[str, Any] = {"M": {"type": "var"}, "K": {"type": "const", "value": 4}}
        inputs: dict[str, Any] = {"x": {"shape": ["M", "K"], "dtype": dtype}}
        if self.one_in(2):
            axes["N"] = {"type": "var"}
            inputs["y"] = {"shape": ["N"], "dtype": dtype}
        if op_type.endswith("paged") and self.one_in(2):
            inputs["causal"] = {"shape": None, "dtype": "bool"}
            inputs["sm_scale"] = {"shape": None, "dtype": "float32"}
        tolerance = {"atol": 0.05, "rtol": 0.02} if self.one_in(4) else None
        return self.data.Definition.model_validate(
            {
                "name": name,
                "op_type": op_type,
                "axes": axes,
                "inputs": inputs,
                "outputs": {"out": {"shape": ["M"], "dtype": dtype}},
                "reference": _source(inputs, 0),
                **({"tolerance": tolerance} if tolerance else {}),
            }
        )

    def _solution(self, definition: str, number: int) -> Any:
        hardware = self.random.choice((["cpu"], ["cpu", "cuda"], ["cuda"], ["NVIDIA H200"]))
        return self.data.Solution.model_validate(
            {
                "name": f"{definition}s{number}",
                "definition": definition,
                "author": self.random.choice(("ann", "bob", "baseline")),
                "spec": {
                    "language": "python",
                    "target_hardware": hardware,
                    "entry_point": "main.py::run",
                    "destination_passing_style": False,
                },
                "sources": [
                    {
                        "path": "main.py",
                        "content": _source(self.definitions[definition].inputs, number + 1),
                    }
                ],
            }
        )

    def _workload(self, definition: Any, uuid: str) -> Any:
        inputs: dict[str, Any] = {}
        for name, spec in definition.inputs.items():
            if spec.shape is not None:
                inputs[name] = {"type": "random"}
            else:
                value = self.one_in(2) if name == "causal" else self.random.choice((0.5, 1.0))
                inputs[name] = {"type": "scalar", "value": value}
        axes = {axis: self.random.choice(SIZES) for axis in definition.var_axes}
        return self.data.Workload.model_validate({"axes": axes, "inputs": inputs, "uuid": uuid})

    def _traces(self, definition: str) -> list[Any]:
        return [
            self._trace(definition, solution, workload)
            for solution in self.solutions[definition]
            for workload in self.workloads[definition]
            for _ in range(self.random.choice((0, 1, 1, 1, 2, 3)))
        ]

    def _trace(self, definition: str, solution: Any, workload: Any) -> Any:
        status = "PASSED" if self.random.random() < 0.8 else self.random.choice(STATUSES)
        torch = self.torch_version if not self.one_in(12) else "1.13.1"
        evaluation: dict[str, Any] = {
            "status": status,
            "environment": {
                "hardware": OTHER_HARDWARE if self.one_in(6) else self.here,
                "libs": {} if self.one_in(4) else {"torch": torch},
            },
            "timestamp": f"2026-01-{self.random.randint(1, 28):02}T00:00:00+00:00",
        }
        if status in ("PASSED", "INCORRECT_NUMERICAL"):
            evaluation["correctness"] = self._correctness()
        if status == "PASSED":
            latency = 0.0 if self.one_in(40) else self.random.choice(LATENCIES)
            evaluation["performance"] = {
                "latency_ms": latency,
                "reference_latency_ms": 2.0,
                "speedup_factor": 2.0 / latency if latency else 0.0,
            }
        if self.one_in(2):
            evaluation["provenance"] = self._provenance(solution)
        return self.data.Trace.model_validate(
            {
                "definition": definition,
                "workload": workload.model_dump(mode="json"),
                "solution": "gone" if self.one_in(50) else solution.name,
                "evaluation": evaluation,
            }
        )

    def _correctness(self) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if self.one_in(3):
            extra["integrity"] = self.random.choice(NOTES)
        if self.one_in(4):
            extra["matched_ratio"] = self.random.choice((1.0, 0.99))
        absolute, relative = self.random.choice(ERRORS), self.random.choice(ERRORS)
        return {
            "max_absolute_error": absolute if self.one_in(3) else min(absolute, 1e-3),
            "max_relative_error": relative if self.one_in(2) else min(relative, 1e-2),
            **({"extra": extra} if extra else {}),
        }

    def _provenance(self, solution: Any) -> dict[str, Any]:
        digest = "0" * 64 if self.one_in(5) else solution.hash()
        return {
            **({"evaluator": "default 2"} if self.one_in(2) else {}),
            "extra": {"solution_hash": digest} if self.one_in(2) else {},
        }

    def config(self, policy: str) -> Any:
        """Return settings of apply; of one dataset they differ in the policy alone."""
        from flashinfer_bench.apply import ApplyConfig, ApplyConfigRegistry

        chance = random.Random(self._settings_seed)
        bounds = {"max_atol": chance.choice((1e-2, 1e-4)), "max_rtol": chance.choice((1e-2, 1.0))}
        settings = {
            "on_miss_policy": policy,
            "aot_ratio": 0.0,
            "nearest_ratio": chance.choice((1.5, 2.0, 8.0)),
            **(bounds if chance.randrange(3) == 0 else {}),
        }
        config = ApplyConfig(**settings)
        if chance.randrange(4):
            return config
        own = ApplyConfig(**{**settings, "on_miss_policy": "use_def_best", "max_atol": 1.0})
        return ApplyConfigRegistry(config, {"d0": own})

    def trace_set(self) -> Any:
        """Return the dataset in memory."""
        trace_set = self.data.TraceSet()
        trace_set.definitions.update(self.definitions)
        trace_set.solutions.update(self.solutions)
        for name, traces in self.traces.items():
            of_workloads = [
                self.data.Trace(definition=name, workload=workload)
                for workload in self.workloads[name]
            ]
            trace_set.add_workload_traces(of_workloads)
            trace_set.add_traces(traces)
        return trace_set

    def write(self, folder: Path) -> None:
        """Write the dataset to a folder."""
        shutil.rmtree(folder, ignore_errors=True)
        for name, definition in self.definitions.items():
            kind = definition.op_type
            (folder / "definitions" / kind).mkdir(parents=True, exist_ok=True)
            (folder / "solutions" / kind).mkdir(parents=True, exist_ok=True)
            (folder / "traces" / kind).mkdir(parents=True, exist_ok=True)
            path = folder / "definitions" / kind / f"{name}.json"
            self.data.save_json_file(definition, str(path))
            for one in self.solutions[name]:
                path = folder / "solutions" / kind / f"{one.name}.json"
                self.data.save_json_file(one, str(path))
            path = folder / "traces" / kind / f"{name}.jsonl"
            self.data.save_jsonl_file(self.traces[name], str(path))


def _source(inputs: Any, number: int) -> str:
    return (
        f"import torch\n\n\ndef run({', '.join(inputs)}):\n"
        f"    return torch.full((x.shape[0],), {number}.0, dtype=x.dtype)\n"
    )


# ------------------------------------------------------------------------------------ what is asked


def _dataset_entry(seed: int, folder: Path) -> dict[str, Any]:
    from flashinfer_bench.apply import ApplyRuntime

    maker = Maker(seed)
    trace_set = maker.trace_set()
    calls = {name: _calls(maker, name) for name in maker.definitions}
    entry: dict[str, Any] = {}
    for policy in POLICIES:
        runtime = ApplyRuntime(trace_set, maker.config(policy), device="cpu")
        entry[policy] = {name: _answers(runtime, maker, name, calls[name]) for name in calls}
        if policy == "fallback_only":
            entry["why"] = {name: _why(runtime.explain(name)) for name in calls}
    maker.write(folder)
    config = maker.config("fallback_only")
    for hardware in (maker.here, OTHER_HARDWARE):
        tables = [_table(source, maker, config, hardware) for source in (trace_set, folder, folder)]
        key = "table here" if hardware == maker.here else "table elsewhere"
        same = all(table == tables[0] for table in tables)
        entry[key] = (
            tables[0] if same else dict(zip(("memory", "new", "kept"), tables, strict=True))
        )
    return entry


def _calls(maker: Maker, name: str) -> list[tuple[dict[str, int], dict[str, Any]]]:
    """Return sizes and scalars: those of all workloads, and some that nobody has recorded."""
    definition = maker.definitions[name]
    scalars = [key for key, spec in definition.inputs.items() if spec.shape is None]
    recorded = [
        (dict(one.axes), {key: one.inputs[key].value for key in scalars})
        for one in maker.workloads[name]
    ]
    others = []
    for _ in range(4):
        axes = {axis: maker.random.choice(SIZES + OTHER_SIZES) for axis in definition.var_axes}
        others.append((axes, maker.random.choice(recorded)[1]))
    return recorded + others


def _answers(runtime: Any, maker: Maker, name: str, calls: list[Any]) -> str:
    return " ".join(_answer(runtime, maker.definitions[name], *call) for call in calls)


def _answer(runtime: Any, definition: Any, axes: dict[str, int], scalars: dict[str, Any]) -> str:
    import torch

    dtype = getattr(torch, definition.inputs["x"].dtype.value)
    sizes = {**definition.const_axes, **axes}
    args = [
        scalars[name]
        if spec.shape is None
        else torch.zeros([sizes[axis] for axis in spec.shape], dtype=dtype)
        for name, spec in definition.inputs.items()
    ]
    result = runtime.dispatch(definition.name, args, None, lambda *_: None)
    chosen = "-" if result is None else f"s{int(result[0]) - 1}"
    shown = ",".join([*map(str, axes.values()), *map(str, scalars.values())])
    return f"{shown}:{chosen}"


def _why(explanation: Any) -> str:
    parts = [f"best {explanation['best']}"]
    for one in explanation["solutions"]:
        refused = "".join(f" {each['kind']}:{each['runs']}" for each in one["refusals"])
        counts = f"{one['counted']}/{one['runs']} runs {one['won']}/{one['keys']} keys"
        parts.append(f"{one['name']} {counts}{refused}")
    return ", ".join(parts)


def _table(source: Any, maker: Maker, config: Any, hardware: str) -> dict[str, str]:
    from flashinfer_bench.apply import ApplyKeyFactory, ApplyTable

    table = ApplyTable.load_or_build(source, config, hardware=hardware)
    chosen = {}
    for name, definition in maker.definitions.items():
        builder = ApplyKeyFactory.specialize(definition)
        keys = [builder.build_from_workload(one) for one in maker.workloads[name]]
        chosen[name] = " ".join(_match(table, name, key) for key in keys)
    return chosen


def _match(table: Any, name: str, key: Any) -> str:
    solution: Optional[str] = table.match_solution(name, key)
    return "-" if solution is None else solution.removeprefix(name)
