"""Whether a device still works: asked after what may have been its fault and not a solution's.

A GPU that is lost fails whatever runs on it, at once. Without a look at the device itself, that
would be taken for the fault of one solution after the other, and the lost device would be through
with the work of the whole run before the others have begun.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from flashinfer_bench.bench.executors.base import Executor
    from flashinfer_bench.data import Evaluation

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 60.0
_MAY_BE_THE_DEVICE = (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.TIMEOUT)


def may_be_the_device(evaluation: Evaluation) -> bool:
    """Return whether a lost device can have caused what came out."""
    return evaluation.status in _MAY_BE_THE_DEVICE


def require_working(executor: Executor) -> None:
    """Have a fresh process, which no solution has touched, put a tensor on the device.

    Takes about as long as making a context; nothing is done for a CPU.

    Parameters
    ----------
    executor : Executor
        Starts the process on its device.

    Raises
    ------
    RunnerFatalError
        If the device does not take it.
    """
    if executor.device == "cpu":
        return
    import torch

    executor.start()
    candidate = executor.spawn()
    try:
        candidate.put_inputs(0, [torch.zeros(8)], {}, timeout_s=_ANSWER_TIMEOUT_S)
    except CandidateError as error:
        raise RunnerFatalError(
            f"{executor.device} does not work any more: {error.message}",
            hint="see nvidia-smi and the system's log; 'fib run --resume' goes on from here",
        ) from error
    finally:
        candidate.close()
