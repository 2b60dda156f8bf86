"""Time and memory of ``fib validate`` and ``fib report``: ``python bench_report.py``.

Generates a dataset (see ``generate_dataset.py``) in a temporary folder, or takes one that is there,
and runs each command in a process of its own. Peak memory is that of the process, as the system
accounts for it. torch is made unimportable, so the figures also show that nothing needs it. Then
the page is opened in a browser, where there is Debian's ``chromium``. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fib_tests.browser import Browser

HERE = Path(__file__).parent
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; "
    "from flashinfer_bench.cli.main import main; sys.argv[0] = 'fib'; main()"
)
COMMANDS = {
    "validate": ["validate"],
    "report summary": ["report", "summary"],
    "report best": ["report", "best", "--json"],
    "report visualize": ["report", "visualize", "--output", "{page}"],
}


def run_once(arguments: list[str]) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds and peak MiB of one command."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    # 1 tells of findings: generated workloads may name tensor files that are not generated.
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)} failed with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 2**20


def generate(folder: Path, traces: int) -> None:
    """Write the dataset."""
    script = str(HERE / "generate_dataset.py")
    command = [sys.executable, script, str(folder), "--traces", str(traces)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(dataset: Path, page: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Run every command `repeats` times; return medians of times, and the largest peak."""
    results = {}
    for name, arguments in COMMANDS.items():
        filled = [part.format(page=page) for part in arguments]
        taken = [run_once([*filled, "--local", str(dataset)]) for _ in range(repeats)]
        results[name] = {
            "wall_s": round(statistics.median(wall for wall, _, _ in taken), 2),
            "cpu_s": round(statistics.median(cpu for _, cpu, _ in taken), 2),
            "peak_mib": round(max(peak for _, _, peak in taken)),
        }
    return results


VIEWS = ("leaderboard", "evaluations", "solutions", "workloads", "failures")


def open_page(page: Path, repeats: int) -> dict[str, float]:
    """Return the median seconds until each view of the page is there; empty without a browser."""
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from fib_tests.browser import CHROMIUM, Browser

    if CHROMIUM is None:
        return {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            return {
                view: round(statistics.median(_opened(browser, page, view, repeats)), 2)
                for view in VIEWS
            }
        finally:
            browser.close()


def _opened(browser: Browser, page: Path, view: str, repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        begin = time.perf_counter()
        browser.open(page, f"#/{view}")
        yield time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dataset", type=Path, help="measure this one instead of generating one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        dataset = options.dataset or Path(scratch) / "dataset"
        if options.dataset is None:
            generate(dataset, options.traces)
        page = Path(scratch) / "page.html"
        results = measure(dataset, page, options.repeats)
        report = {
            "benchmark": "report",
            "dataset": str(options.dataset) if options.dataset else {"traces": options.traces},
            "repeats": options.repeats,
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "page_mib": round(page.stat().st_size / 2**20, 2),
            "page_opens_s": open_page(page, options.repeats),
            "results": results,
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
