"""Benchmark the sample dataset, and report the outcome and the next steps.

::

    python examples/demo.py [--output demo-output] [options of fib run]

``nox -s demo`` runs this in a separate environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
QUICK = ("--iterations", "20", "--warmup-runs", "3", "--num-trials", "2")
# This exit code means that solutions were skipped because something, such as Triton, is missing.
FINE = (0, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR")
    arguments, options = parser.parse_known_args()
    expected = json.loads((EXAMPLES / "sources" / "expected.json").read_text(encoding="utf-8"))
    introduce(expected, arguments.output)
    shutil.rmtree(arguments.output, ignore_errors=True)
    shutil.copytree(EXAMPLES / "sample-dataset", arguments.output)
    with (arguments.output / "results.tsv").open("w") as table:
        quiet = ("--log-level", "ERROR") if sys.stderr.isatty() else ()  # there is a progress bar
        run = ("run", arguments.output, *quiet, *(options or QUICK))
        code = fib(*run, stdout=table).returncode
    if code not in FINE:
        return code
    fib("report", "visualize", arguments.output, "--output", arguments.output / "report.html",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    surprises = tell_outcomes(expected, arguments.output)
    tell_winners(arguments.output)
    tell_next(arguments.output)
    return 1 if surprises else 0


def fib(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flashinfer_bench", *map(str, arguments)]
    return subprocess.run(command, check=False, text=True, **options)  # type: ignore[call-overload, no-any-return]


def introduce(expected: dict[str, dict[str, object]], output: Path) -> None:
    definitions = {str(one["definition"]) for one in expected.values()}
    failing = sum(one["role"] in ("wrong", "crash", "no-compile") for one in expected.values())
    say(
        f"This demo judges and times {len(expected)} solutions (kernels in Python, C++, Triton",
        f"and CUDA) of {len(definitions)} definitions. {failing} of them are meant to fail:",
        "they are wrong, crash, or do not compile. It takes about two minutes on two idle",
        "cores.",
        f"Results go to {output}/.",
    )


def tell_outcomes(expected: dict[str, dict[str, object]], output: Path) -> list[str]:
    """Print which failures were intended; return those that were not."""
    passed, intended, surprises = 0, 0, []
    for path in sorted((output / "traces").rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            trace = json.loads(line)
            name, uuid = trace["solution"], trace["workload"]["uuid"]
            status, wanted = trace["evaluation"]["status"], expected[name]["status"]
            assert isinstance(wanted, dict)
            if status != wanted[uuid]:
                surprises.append(f"{name} on {uuid}: {status}, expected {wanted[uuid]}")
            elif status == "PASSED":
                passed += 1
            else:
                intended += 1
    say("", f"{passed} evaluations passed and {intended} failed, all as intended.")
    if surprises:
        say(f"{len(surprises)} ended differently:", *(f"  {one}" for one in surprises))
    return surprises


def tell_winners(output: Path) -> None:
    report = fib("report", "best", output, "--json", capture_output=True).stdout
    best = json.loads(report)["best"] if report else []
    say("", "The fastest correct solution of each definition:")
    for one in best:
        speedup = f", {one['speedup']:.2g} x the reference" if one["speedup"] else ""
        say(f"  {one['definition']}", f"    {one['solution']}: {one['geomean_ms']:.3g} ms{speedup}")
        if one["not_distinguishable"]:
            say(f"    not distinguishable from {', '.join(one['not_distinguishable'])}")


def tell_next(output: Path) -> None:
    command = os.path.relpath(Path(sys.executable).parent / "fib")
    say(
        "",
        "What to do next:",
        f"  Open {output / 'report.html'} in a browser.",
        "  See why a solution failed:",
        f"    {command} show agent-7_gemm_bf16 {output}",
        "  See the rankings:",
        f"    {command} report best {output} --top 3",
        "  Write your own kernel: docs/tutorials/your-first-kernel.md",
    )


def say(*lines: str) -> None:
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
