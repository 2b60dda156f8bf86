"""Find planted defects with compute-sanitizer, and the limits of known kernels with ncu.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``), with
ncu, compute-sanitizer and nvcc in ``PATH``::

    python tests/gpu/agents_on_gpu.py [--device cuda:0] [--only race,profile] [--save DIR]
                                      [--sandbox auto] [--tool-timeout 45] [--limit 180]

The kernels are in ``agents/defects.cu``. It prints one JSON object: for each defect whether the
right tool names the right kernel and line, for each kernel of known limit what was said, and for
each run what confined it, how long it took and what went wrong. Where a tool fails under the
sandbox, it is tried again without, and the report says so. ``--save`` keeps what the tools wrote,
each file cut to 200 KB. Exit code 1 if anything differs, 4 without a device.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import ROOT, definition, failed, parser, require_gpu, run_checks, solution, told

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = (ROOT / "tests" / "gpu" / "agents" / "defects.cu").read_text()
N = 1024
KEPT_BYTES = 200_000

PROBE = definition(
    "agents_probe",
    "op",
    {"n": None},
    {"x": "n float32", "which": " int32"},
    {"out": "n float32"},
    "def run(x, which):\n    return x\n",
)
MATMUL = """
import torch

made = []


def run(x, which, out):
    if not made:
        made.extend(torch.randn(8192, 8192, device=x.device).bfloat16() for _ in range(2))
        made.append(torch.empty_like(made[0]))
    torch.mm(made[0], made[1], out=made[2])
"""
# Name of the run, tool, number of the workload, kernels whose defect must be found.
DEFECTS = (
    ("memory-write", "memcheck", 0, ("write_past_end",)),
    ("memory-read", "memcheck", 1, ("read_past_end",)),
    ("memory-read-far", "memcheck", 5, ("read_far_past_end",)),
    ("memory-misaligned", "memcheck", 2, ("misaligned_store",)),
    ("memory-freed", "memcheck", 3, ("use_of_freed",)),
    ("memory-shared", "memcheck", 4, ("shared_overrun",)),
    (
        "race",
        "racecheck",
        10,
        ("no_barrier_before_read", "no_barrier_in_reduction", "write_after_read", "two_writers"),
    ),
    (
        "uninitialised",
        "initcheck",
        20,
        ("adds_to_output", "reads_scratch", "reads_second_half", "reads_odd_too"),
    ),
    ("barrier-branch", "synccheck", 30, ("barrier_in_branch",)),
    ("barrier-both", "synccheck", 31, ("barrier_in_both_branches",)),
    ("barrier-mask", "synccheck", 32, ("mask_without_caller",)),
    ("barrier-warp", "synccheck", 33, ("warp_barrier_in_branch",)),
)
LIMITS = {"large_copy": "bandwidth", "pointer_chase": "latency", "tiny": "launch"}


def workload(which: int) -> Any:
    """Return the workload that launches some of the kernels."""
    from flashinfer_bench.data import Workload

    inputs = {"x": {"type": "random"}, "which": {"type": "scalar", "value": which}}
    return Workload(axes={"n": N}, inputs=inputs, uuid=f"which-{which}")


def records() -> tuple[Any, Any, Any]:
    """Return a dataset in memory, the solution in CUDA and the one in torch."""
    from flashinfer_bench.data import Definition, Solution, TraceSet

    made = Definition.model_validate_json(json.dumps(PROBE))
    record = solution("defects", PROBE["name"], SOURCE, language="cuda", into=True)
    record["spec"]["entry_point"] = "main.cu::run"
    record["spec"]["binding"] = "tvm-ffi"
    record["sources"][0]["path"] = "main.cu"
    kernels = Solution.model_validate_json(json.dumps(record))
    matmul = solution("matmul", PROBE["name"], MATMUL, into=True)
    dataset = TraceSet(definitions={made.name: made})
    return dataset, kernels, Solution.model_validate_json(json.dumps(matmul))


def lines_of(kernel: str) -> set[int]:
    """Return the lines of a kernel's defect."""
    return {
        number
        for number, line in enumerate(SOURCE.splitlines(), 1)
        if re.search(rf"// DEFECT {kernel}$", line)
    }


class Runs:
    """Runs the tools, until the time is up."""

    def __init__(self, options: Any, scratch: Path) -> None:
        self.options = options
        self.scratch = scratch
        self.until = time.monotonic() + options.limit
        self.dataset, self.kernels, self.matmul = records()
        self.level = {"ncu": options.sandbox, "sanitizer": options.sandbox}
        self.fallbacks: dict[str, Any] = {}

    def build(self) -> dict[str, Any]:
        """Compile the kernels with and without line information, at the same time."""
        from fib_agents.sanitizer import with_line_info
        from fib_agents.tool_runs import ToolError, build, select

        def one(chosen: Any) -> float:
            began = time.monotonic()
            job = select(chosen, workload(0), self.dataset)
            try:
                build(job, device=self.options.device, sandbox=self.options.sandbox)
            except ToolError as error:
                raise AssertionError(error.problem) from None
            return round(time.monotonic() - began, 1)

        with ThreadPoolExecutor(2) as pool:
            return {"build_s": [*pool.map(one, (self.kernels, with_line_info(self.kernels)))]}

    def folder(self, name: str) -> Path:
        """Return the folder for what a tool writes."""
        base = Path(self.options.save) if self.options.save else self.scratch
        made = base / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def timeout(self) -> float:
        """Return the seconds for the next run of a tool."""
        left = self.until - time.monotonic()
        assert left > 5, "not run: the time is up (--limit)"
        return float(min(self.options.tool_timeout, left))

    def guarded(self, tool: str, work: Callable[[str], Any]) -> Any:
        """Run a tool; without the sandbox if it fails under it."""
        found = work(self.level[tool])
        seems = {"crashed", "no_kernels", "unreadable_report", "timeout", "inputs_failed"}
        seems |= {"call_failed", "build_failed"}
        if found.problem is not None and found.problem.code in seems and self.level[tool] != "off":
            without = work("off")
            if without.problem is None:
                self.level[tool] = "off"
                self.fallbacks[tool] = vars(found.problem)
                return without
        return found

    def defects(self, name: str, tool: str, which: int, kernels: tuple[str, ...]) -> dict[str, Any]:
        """Look for the defects of some kernels."""
        from fib_agents import memcheck

        folder = self.folder(name)
        report = self.guarded(
            "sanitizer",
            lambda level: memcheck(
                self.kernels,
                workload(which),
                tools=(tool,),
                dataset=self.dataset,
                device=self.options.device,
                sandbox=level,
                timeout=self.timeout(),
                save=folder,
            ),
        )
        (folder / "report.json").write_text(json.dumps(report.as_dict(), indent=1))
        for check in report.checks:
            (folder / "printed.txt").write_text(check.log)
        right = {
            kernel: any(
                one.tool == tool and one.kernel.endswith(kernel) and one.line in lines_of(kernel)
                for one in report.findings
            )
            for kernel in kernels
        }
        seen = [(one.kind, one.kernel, one.place, one.count) for one in report.findings]
        details = {"found": right, "findings": seen, "sandbox": vars(report.sandbox)}
        details["tool_s"] = [check.seconds for check in report.checks]
        assert all(right.values()), {**details, "problem": report.problem}
        return {**details, "problem": report.problem}

    def limits(self, name: str, chosen: Any, expected: dict[str, str]) -> dict[str, Any]:
        """Profile kernels whose limit is known."""
        from fib_agents import profile

        began, folder = time.monotonic(), self.folder(name)
        found = self.guarded(
            "ncu",
            lambda level: profile(
                chosen,
                workload(40),
                dataset=self.dataset,
                device=self.options.device,
                sandbox=level,
                timeout=self.timeout(),
                save=folder,
            ),
        )
        (folder / "report.json").write_text(json.dumps(found.as_dict(), indent=1))
        kernels = {one.name: (one.limit, one.reason, one.time_us) for one in found.kernels}
        wrong = {
            kernel: limit
            for kernel, limit in expected.items()
            if not any(n.endswith(kernel) and k[0] == limit for n, k in kernels.items())
        }
        details = {"kernels": kernels, "sandbox": vars(found.sandbox), "problem": found.problem}
        details["run_s"] = round(time.monotonic() - began, 1)
        assert found.problem is None, details
        assert not wrong, {"expected": wrong, **details}
        return details


def cut(folder: Path) -> None:
    """Cut what the tools wrote, so that it can become test data."""
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > KEPT_BYTES:
            with file.open("rb") as opened:
                kept = opened.read(KEPT_BYTES)
            file.write_bytes(kept)


def main() -> int:
    """Make the checks and print what became of them."""
    made = parser(__doc__)
    made.add_argument("--only", default="", help="names of checks, or beginnings, with commas")
    made.add_argument("--save", help="folder for what the tools wrote")
    made.add_argument("--sandbox", default="auto")
    made.add_argument("--tool-timeout", type=float, default=45.0)
    made.add_argument("--limit", type=float, default=180.0)
    options = made.parse_args()
    require_gpu()
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(options, Path(scratch))
        checks: dict[str, Callable[[], Any]] = {
            "profile-kernels": partial(runs.limits, "profile-kernels", runs.kernels, LIMITS),
            # The only kernel: its name depends on the version of cuBLAS.
            "profile-matmul": partial(
                runs.limits, "profile-matmul", runs.matmul, {"": "tensor cores"}
            ),
            **{one[0]: partial(runs.defects, *one) for one in DEFECTS},
        }
        only = tuple(filter(None, options.only.split(",")))
        checks = {name: work for name, work in checks.items() if not only or name.startswith(only)}
        found = run_checks({"build": runs.build, **checks})
    if options.save:
        cut(Path(options.save))
    defects = [result for name, result in found.items() if not name.startswith(("build", "prof"))]
    report = {
        "device": torch.cuda.get_device_name(options.device),
        "torch": torch.__version__,
        "expected": len(checks),
        "found": sum(result["ok"] for name, result in found.items() if name in checks),
        "runs_with_all_defects": sum(result["ok"] for result in defects),
        "only_without_sandbox": runs.fallbacks,
        "checks": found,
        "failed": failed(found),
    }
    return told(report, failed(found))


if __name__ == "__main__":
    sys.exit(main())
