"""Timed calls, each of them an exchange of its own: staged, fired, and perhaps collected.

Staging does all that takes time and tells nothing. Firing begins with values that nobody in this
process has seen, and what it does besides the call is short and always the same: the judge
subtracts what that costs from its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.values import announce, plain
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.candidate.inputs import InputSet
    from flashinfer_bench.bench.candidate.subject import Subject
    from flashinfer_bench.bench.candidate.tending import Tending
    from flashinfer_bench.bench.timing.base import Timer


@dataclass(frozen=True)
class _Staged:
    subject: Subject
    inputs: InputSet
    arguments: tuple[Any, ...]
    outputs: list[Any]
    warm: bool


@dataclass(frozen=True)
class Changes:
    """What turns staged inputs into those of a call.

    Attributes
    ----------
    mixes : sequence of int
        For each input what chooses its signs or columns.
    numbers : sequence of int
        Which inputs are patched.
    patches : sequence
        For each of them its flat positions and new elements.
    """

    mixes: Sequence[int]
    numbers: Sequence[int]
    patches: Sequence[Any]

    def make(self, inputs: InputSet) -> None:
        """Change `inputs`.

        Raises
        ------
        RunnerError
            If the changes are not for these inputs.
        """
        if len(self.patches) != 2 * len(self.numbers):
            many = len(self.numbers)
            raise RunnerError(f"{len(self.patches)} tensors came to patch {many} inputs")
        inputs.mix(self.mixes)
        for index, number in enumerate(self.numbers):
            inputs.patch(number, self.patches[2 * index], self.patches[2 * index + 1])


class Shots:
    """The staged call of a candidate, and what the last one returned.

    Parameters
    ----------
    tending : Tending
        Waits for the device, and flushes its caches.
    """

    def __init__(self, tending: Tending) -> None:
        self._tending = tending
        self._staged: Optional[_Staged] = None
        self._outputs: Optional[list[Any]] = None

    def stage(
        self,
        subject: Subject,
        inputs: InputSet,
        shifts: Sequence[int],
        output_shift: int,
        *,
        warm: bool = False,
    ) -> None:
        """Make everything ready for one call.

        Parameters
        ----------
        subject : Subject
            What will be called.
        inputs : InputSet
            With what.
        shifts : sequence of int
            By how many elements each input moves.
        output_shift : int
            By how many bytes the outputs move.
        warm : bool
            Leave the device's caches as they are.
        """
        self.drop()  # their memory is to be had again
        outputs = subject.new_outputs(inputs, output_shift)
        given = inputs.at(shifts)
        if warm:
            self._tending.synchronize()
        else:
            self._tending.flush_caches()
        self._staged = _Staged(subject, inputs, (*given, *outputs), outputs, warm)

    def drop(self) -> None:
        """Let go of the staged call, and of what the last one returned."""
        self._staged = self._outputs = None

    def fire(
        self,
        timer: Timer,
        changes: Changes,
        changed: Callable[[], Any],
        enqueued: Callable[[], Any],
        finished: Callable[[], Any],
    ) -> tuple[float, list[wire.Value], list[Optional[wire.Place]]]:
        """Change the inputs, and make and time the call.

        Parameters
        ----------
        timer : Timer
            Takes the latency.
        changes : Changes
            What the inputs still lack.
        changed : callable
            Tells the judge that the inputs are as they are to be.
        enqueued, finished : callable
            Tell it that the call has returned, and that the device has done it; not called where
            that is the same.

        Returns
        -------
        milliseconds : float
            The latency.
        values : list of Value
            What was returned, tensors without their elements.
        places : list of Place or None
            Where these are.

        Raises
        ------
        RunnerError
            If no call is staged, or the changes make no sense.
        TypeError
            If something was returned that cannot be sent.
        """
        staged, self._staged = self._staged, None
        if staged is None:
            raise RunnerError("no call has been staged")
        changes.make(staged.inputs)
        self._tending.settle_inputs(warm=staged.warm)
        function = staged.subject.function
        if self._tending.device != "cpu":
            function = _telling(function, enqueued)
        changed()
        sample, result = timer.time_call(function, staged.arguments, device=self._tending.device)
        if self._tending.device != "cpu":
            self._tending.synchronize()  # whatever the timer was that has answered
            finished()
        outputs = staged.subject.listed(result, staged.outputs)
        require_few(outputs)
        self._outputs = outputs = [plain(output) for output in outputs]
        described = [announce(output) for output in outputs]
        return sample, [value for value, _ in described], [place for _, place in described]

    @property
    def outputs(self) -> list[Any]:
        """What the last call returned.

        Raises
        ------
        RunnerError
            If none has been made since the last one was staged.
        """
        if self._outputs is None:
            raise RunnerError("no call has been fired that could be collected")
        return self._outputs


def _telling(function: Callable[..., Any], tell: Callable[[], Any]) -> Callable[..., Any]:
    """Return what calls `function`, and then `tell`."""

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        tell()
        return result

    return call


def require_few(outputs: Sequence[Any]) -> None:
    """Raise `TypeError` if there are more outputs than a message may announce."""
    if len(outputs) > wire.MAX_VALUES:
        raise TypeError(f"{len(outputs)} outputs were returned; {wire.MAX_VALUES} can be sent")
