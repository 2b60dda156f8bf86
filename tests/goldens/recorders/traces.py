"""What a seeded run of the sample dataset on the CPU writes: verdicts, errors, and which facts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from recorders.common import Normaliser, common, scratch
from recorders.datasets import write_sample

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = ["--device", "cpu", "--seed", "1", "--iterations", "5", "--warmup-runs", "1"]
OPTIONS += ["--num-trials", "2"]
# Their values are measured, or name the machine; what else there is follows from the seed.
_MEASURED = frozenset(
    {
        *("timestamp", "wall_s", "build_s", "performance", "host", "libs", "hardware", "timing"),
        *("rotation_seed", "harness_version", "timer_version", "plugins", "toolchain", "decoys"),
        *("hidden_ms", "allowed_ms", "exchange_ms", "exchange_allowed_ms", "checks_id"),
        "reference_seed",
    }
)
_NOT_ALWAYS = ("outliers", "dropped", "added_ms")


def record(root: Path, runs: int = 2) -> dict[str, Any]:
    """Return an entry for each trace."""
    return common([_record(root) for _ in range(runs)])


def _record(root: Path) -> dict[str, Any]:
    with scratch() as folder:
        write_sample(root, folder / "data", traces=False)
        command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", "data", *OPTIONS]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=3000
        )
        last = [line for line in done.stderr.splitlines() if " evaluations in " in line]
        entries: dict[str, Any] = {
            "exit code": done.returncode,
            "summary": re.sub(r"[\d.]+ s:", "<n> s:", last[0]) if last else done.stderr[-2000:],
        }
        normaliser = Normaliser(folder, root)
        sandboxes = set()
        for path in sorted((folder / "data" / "traces").rglob("*.jsonl")):
            entries[f"order in {path.stem}"] = []
            for line in path.read_text(encoding="utf-8").splitlines():
                trace = json.loads(line)
                key = f"{trace['solution']} {trace['workload']['uuid'][:8]}"
                entries[f"order in {path.stem}"].append(key)
                entries[key] = entry = _entry(trace, normaliser)
                extra = entry.get("correctness", {}).get("extra", {})
                sandboxes.add(extra.get("integrity", {}).pop("sandbox", None))
        entries["sandboxes"] = sorted(filter(None, sandboxes))
        return entries


def _entry(trace: dict[str, Any], normaliser: Normaliser) -> dict[str, Any]:
    evaluation = trace["evaluation"]
    log = evaluation.pop("log", "")
    if evaluation["status"] == "PASSED":
        # Before its output stand remarks on the machine: its load, and what was measured again.
        log = log.partition("--- output ---\n")[2]
    first = log.partition("\n")[0]
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "<n>", normaliser.text(first))
    return {"log": text[:200], **_facts(evaluation)}


def _facts(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _keys(one) if key in _MEASURED else _facts(one)
            for key, one in value.items()
            if key not in _NOT_ALWAYS
        }
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)
    return [_facts(one) for one in value] if isinstance(value, list) else value


def _keys(value: Any) -> Any:
    if not isinstance(value, dict):
        return "<measured>"
    return " ".join(sorted(key for key in value if key not in _NOT_ALWAYS))
