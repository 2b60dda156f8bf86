"""What a timed call costs on a device at least, whatever a reference shows of it.

A reference that keeps the host busy, because it waits for the device or launches many small
kernels, returns when the device has nearly done its work. So it shows nothing of the way from a
call's return to the device's end, which other solutions go: the timer's second event, letting the
device start, being told, telling the judge. That is 0.1 ms of the host's, and nobody's hidden time.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from fib_judge.reference import few_calls
from flashinfer_bench.bench.digests import trial_seed
from flashinfer_bench.bench.executors.base import CandidateError

if TYPE_CHECKING:
    from fib_judge.normals import Normals
    from fib_judge.records import VerifiedSession
    from flashinfer_bench.data import Definition, Solution

logger = logging.getLogger(__name__)

_ELEMENTS = 1 << 20  # some microseconds on a device: one kernel, which the host does not wait for
_SOURCE = "def run(x):\n    return x + x\n"


def with_plain_calls(session: VerifiedSession, normals: Normals) -> Normals:
    """Return `normals`, with at least the overhead of plain calls.

    Parameters
    ----------
    session : Session
        The run. What is learned is kept there; if it cannot be learned, or on the CPU, nothing
        changes.
    normals : Normals
        What is normal for a reference.
    """
    if session.device == "cpu":
        return normals
    if session.device not in session.plain_calls:
        try:
            session.plain_calls[session.device] = _learn(session)
        except CandidateError as error:
            logger.warning("%s: what a plain call costs is not known: %s", session.device, error)
            return normals
    plain = session.plain_calls[session.device]
    return replace(normals, overhead=normals.overhead.or_slower(plain.overhead))


def _learn(session: VerifiedSession) -> Normals:
    """Time a definition of one small kernel.

    Raises
    ------
    CandidateError
        If its process fails.
    """
    from flashinfer_bench.data import RandomInput, Workload
    from flashinfer_bench.tensors import generate_inputs
    from flashinfer_bench.tensors.vary import freedoms

    definition, solution = _small_kernel()
    workload = Workload(axes={}, inputs={"x": RandomInput()}, uuid=definition.name)
    seed = trial_seed(session.seed, 0)
    inputs = generate_inputs(definition, workload, seed=seed, root=None)
    free = freedoms(definition, workload, inputs)
    return few_calls(session, definition, workload, solution, [inputs], free)


def _small_kernel() -> tuple[Definition, Solution]:
    from flashinfer_bench.data import (
        AxisConst,
        BuildSpec,
        Definition,
        Solution,
        SourceFile,
        TensorSpec,
    )

    vector = TensorSpec(shape=["n"], dtype="float32")
    definition = Definition(
        name="one_small_kernel",
        op_type="elementwise",
        axes={"n": AxisConst(value=_ELEMENTS)},
        inputs={"x": vector},
        outputs={"y": vector},
        reference=_SOURCE,
    )
    solution = Solution(
        name=definition.name,
        definition=definition.name,
        author="judge",
        spec=BuildSpec(
            language="python",
            target_hardware=["any"],
            entry_point="main.py::run",
            destination_passing_style=False,
        ),
        sources=[SourceFile(path="main.py", content=_SOURCE)],
    )
    return definition, solution
