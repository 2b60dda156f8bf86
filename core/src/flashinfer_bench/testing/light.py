"""Looking at a plugin's module and at a probe from a fresh interpreter.

Run as ``python -m flashinfer_bench.testing.light``: a request on standard input, a report as the
last line of standard output.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flashinfer_bench._lazy import import_string
from flashinfer_bench.plugins.probes import Probe
from flashinfer_bench.testing.watch import changes, process_state

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability

HEAVY = ("torch", "numpy", "triton", "tvm_ffi", "tvm", "tilelang", "flashinfer", "jax", "cupy")
"""Libraries that take long to import, and may make a device context."""

_heavy = set(HEAVY)


def main() -> None:
    """Answer the one request."""
    request = json.loads(sys.stdin.read())
    sys.path[:] = request["sys_path"]
    _heavy.update(request["libraries"])
    report: dict[str, Any] = {}
    if request["plugin"]:
        report["plugin"] = _step(lambda: importlib.import_module(request["plugin"].split(":")[0]))
    if request["probe"]:
        report["probe"] = _step(lambda: _probe(request["probe"], request["timeout_s"]))
    if request["construct"]:
        report["construct"] = _step(lambda: import_string(request["construct"])())
    sys.stdout.write("\n" + json.dumps(report) + "\n")


def _step(run: Any) -> dict[str, Any]:
    """Run something, and say what it did to this process."""
    before = process_state()
    loaded = _imported()
    result: dict[str, Any] = {"error": ""}
    try:
        result["answer"] = run()
    except BaseException:  # noqa: BLE001 - a plugin's code; the report tells of it
        result["error"] = traceback.format_exc()
    result["changes"] = changes(before, process_state())
    result["heavy"] = sorted(_imported() - loaded)
    if not isinstance(result.get("answer"), list):
        result["answer"] = None
    return result


def _probe(path: str, timeout_s: float) -> list[dict[str, Any]]:
    """Return the answers to asking the probe three times."""
    probes = [Probe(path, timeout_s) for _ in range(3)]
    return [{**_plain(probe.answer()), "raised": probe.failure is not None} for probe in probes]


def _plain(answer: Availability) -> dict[str, Any]:
    return asdict(answer)


def _imported() -> set[str]:
    return {name for name in _heavy if name in sys.modules}


if __name__ == "__main__":
    main()
