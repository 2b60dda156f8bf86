"""The process that measures: ``python -m fib_judge.calibration.child DEVICE``.

It runs none but this project's code. Each line that it writes to stdout is a JSON object: how far
it has come (``{"share": 0.25}``), and at the end what it found (``{"ceilings": …}``).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fib_judge.calibration import Ceilings, cpu, cuda, torch_version
from fib_judge.calibration.passes import best_of_passes, ceilings_of
from fib_judge.calibration.processes import process_spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(arguments: Sequence[str]) -> None:
    """Measure the device that is named, for at most the seconds that may be given after it."""
    say = _take_stdout()
    gc.disable()
    budget_s = float(arguments[1]) if len(arguments) > 1 else None
    ceilings = measured(
        arguments[0], budget_s=budget_s, on_progress=lambda share: say({"share": round(share, 3)})
    )
    say({"ceilings": ceilings.to_json()})


def _take_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep stdout to ourselves: libraries that print there shall not break a line apart."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say(record: dict[str, Any]) -> None:
        ours.write(json.dumps(record) + "\n")
        ours.flush()

    return say


def measured(
    device: str, *, budget_s: float | None, on_progress: Callable[[float], None]
) -> Ceilings:
    """Measure `device` in this process, which must run nothing else.

    Raises
    ------
    CapabilityError
        If there is no such device.
    """
    from flashinfer_bench.tensors import hardware_from_device

    on_cpu = device == "cpu"
    # Processes are forked for that, before this one opens the device.
    process_ms, process_share = (0.0, 0.0) if on_cpu else process_spread(device)
    hardware = hardware_from_device(device)
    probes = cpu.probes() if on_cpu else cuda.probes(device)
    limit_s = (cpu.BUDGET_S if on_cpu else cuda.BUDGET_S) if budget_s is None else budget_s
    best = best_of_passes(probes, budget_s=limit_s, on_progress=on_progress)
    return msgspec.structs.replace(
        ceilings_of(best.rates),
        device=device,
        hardware=hardware,
        torch=torch_version(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        settled=best.settled,
        process_ms=process_ms,
        process_share=process_share,
    )
