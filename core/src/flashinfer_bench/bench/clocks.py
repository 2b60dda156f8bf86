"""Holding the clocks of the devices of a run still, if that is asked for."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.watch.lock import ClockRequest, locked_clocks
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flashinfer_bench.bench.runner import Runner


@contextmanager
def locked_runners(runners: Sequence[Runner], sm_mhz: Optional[int]) -> Iterator[None]:
    """Set the SM clock of each runner's device for the body of a ``with`` statement.

    What becomes of it is each runner's `clock_lock`, which goes into its traces. That a clock
    cannot be set is a warning.

    Parameters
    ----------
    runners : sequence of Runner
        One for each device.
    sm_mhz : int, optional
        The clock in MHz; None changes nothing.

    Raises
    ------
    ConfigError
        If a runner works on the CPU.
    """
    if sm_mhz is None:
        yield
        return
    for runner in runners:
        if runner.device == "cpu":
            raise ConfigError(
                f"lock_clocks_mhz={sm_mhz}: only clocks of NVIDIA GPUs can be held",
                hint="leave it out, or name a GPU with --device",
            )
    with ExitStack() as stack:
        for runner in runners:
            request = ClockRequest(sm_mhz=sm_mhz)
            runner.clock_lock = stack.enter_context(locked_clocks(runner.device, request))
        try:
            yield
        finally:
            for runner in runners:
                runner.clock_lock = None
