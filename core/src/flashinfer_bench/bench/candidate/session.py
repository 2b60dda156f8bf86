"""The loop of a candidate: read a request, do it, reply.

Whatever the solution raises becomes a reply; whatever breaks the conversation itself ends the
process. The loop guards against accidents of a solution, not against attacks: code of the
solution shares its memory, so the judge believes none of its replies.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.bench.candidate.failures import MAX_NAME, clip, describe_failure
from flashinfer_bench.bench.candidate.processes import libc
from flashinfer_bench.bench.candidate.subject import InputSet, Subject, is_usable
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import PeerClosed
from flashinfer_bench.bench.transport.values import describe
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.bench.timing.base import Timer
    from flashinfer_bench.bench.transport.channel import Channel
    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.data import Definition, Solution

    Answer = tuple[wire.Message, Sequence[Optional[memoryview]]]


class Session:
    """Answers one judge until it says goodbye.

    Parameters
    ----------
    channel : Channel
        The candidate's end.
    device : str
        Where the solution works.
    registry : BuilderRegistry
        Builds the solution.
    timers : mapping
        Timers by name, constructed; or why one could not be.
    compiles_only : bool
        Refuse every request but `Compile`.
    """

    def __init__(
        self,
        channel: Channel[wire.Message],
        device: str,
        registry: BuilderRegistry,
        timers: Mapping[str, Union[Timer, Exception]],
        *,
        compiles_only: bool = False,
    ) -> None:
        self._channel = channel
        self._device = device
        self._registry = registry
        self._timers = dict(timers)
        self._compiles_only = compiles_only
        self._subject: Optional[Subject] = None
        self._builder = ""
        self._sets: dict[int, InputSet] = {}
        # Looked up now: the solution may replace them.
        self._pid, self._getpid, self._exit = os.getpid(), os.getpid, os._exit
        self._flush_c = libc().fflush

    def run(self) -> None:
        """Answer requests until the judge ends the conversation.

        Raises
        ------
        ProtocolError
            If the judge sends something that is not allowed.
        """
        with contextlib.suppress(PeerClosed):
            self._channel.send(wire.Ready(0), Deadline.never())
            while True:
                self._answer(self._channel.receive(Deadline.never()))

    def _answer(self, request: wire.Message) -> None:
        values: list[Any] = []
        if isinstance(request, wire.PutInputs):
            # Before anything can fail: the next request must be found where it begins.
            values = self._channel.receive_values(request.values, Deadline.never())
        try:
            reply, blobs = self._handle(request, values)
        except BaseException as error:  # noqa: BLE001 - candidate boundary: SystemExit and all
            reply, blobs = self._failure(request.token, error), ()
        if self._getpid() != self._pid:
            self._exit(0)  # a process that the solution forked has come back here
        self._flush()
        self._channel.send(reply, Deadline.never(), blobs)

    def _handle(self, request: wire.Message, values: list[Any]) -> Answer:
        if isinstance(request, wire.Compile):
            return self._compile(request), ()
        if self._compiles_only:
            raise RunnerError("this process has been started to compile, and for nothing else")
        if isinstance(request, wire.Load):
            return self._load(request), ()
        if isinstance(request, wire.PutInputs):
            return self._put_inputs(request, values), ()
        if isinstance(request, wire.Call):
            return self._call(request)
        if isinstance(request, wire.Time):
            return self._time(request), ()
        raise RunnerError(f"{type(request).__name__} is not a request of a running session")

    def _compile(self, request: wire.Compile) -> wire.Message:
        definition, solution = _problem(request)
        self._builder = clip(self._registry.builder_of(solution), MAX_NAME)
        done = self._registry.compile(definition, solution)
        return wire.Compiled(request.token, self._builder, done.fresh)

    def _load(self, request: wire.Load) -> wire.Message:
        definition, solution = _problem(request)
        runnable = self._registry.build(definition, solution)
        self._subject = subject = Subject(definition, runnable, self._device)
        style = subject.destination_passing_style
        return wire.Loaded(request.token, clip(str(subject.build_type), MAX_NAME), style)

    def _put_inputs(self, request: wire.PutInputs, values: list[Any]) -> wire.Message:
        self._sets.pop(request.slot, None)  # before the new ones need its memory
        inputs = tuple(self._to_device(value) for value in values)
        self._sets[request.slot] = InputSet(inputs, dict(request.axes))
        return wire.Done(request.token)

    def _to_device(self, value: Any) -> Any:
        if isinstance(value, (bool, int, float)):
            return value
        return value.to(self._device)

    def _call(self, request: wire.Call) -> Answer:
        outputs = self._loaded.call(self._inputs(request.slot))
        if len(outputs) > wire.MAX_VALUES:
            raise TypeError(f"{len(outputs)} outputs were returned; {wire.MAX_VALUES} can be sent")
        records, blobs, left = [], [], request.budget
        for output in outputs:
            record, blob = describe(output, left)
            records.append(record)
            blobs.append(blob)
            left -= blob.nbytes if blob is not None else 0
        return wire.Outputs(request.token, records), blobs

    def _time(self, request: wire.Time) -> wire.Message:
        timer = self._timer(request.timer)
        sets = [self._inputs(slot) for slot in request.slots]
        samples = self._loaded.time(
            sets, timer, warmup=request.warmup, iterations=request.iterations
        )
        return wire.Timed(request.token, timer.name, timer.version, samples)

    @property
    def _loaded(self) -> Subject:
        if self._subject is None:
            raise RunnerError("no solution has been loaded")
        return self._subject

    def _inputs(self, slot: int) -> InputSet:
        try:
            return self._sets[slot]
        except KeyError:
            raise RunnerError(f"no inputs have been put into slot {slot}") from None

    def _timer(self, name: str) -> Timer:
        timer = self._timers.get(name)
        if timer is None:
            known = ", ".join(sorted(self._timers)) or "none"
            raise RunnerError(f"there is no timer {name!r} for {self._device}; there are: {known}")
        if isinstance(timer, Exception):
            raise RunnerError(f"timer {name!r} cannot be used: {timer}") from timer
        return timer

    def _failure(self, token: int, error: BaseException) -> wire.Failed:
        failed = describe_failure(token, error, fatal=not is_usable(self._device))
        failed.builder = self._builder
        return failed

    def _flush(self) -> None:
        """Write out what the solution has printed, in Python and in C."""
        for stream in (sys.stdout, sys.stderr):
            # The solution may have closed or replaced it.
            with contextlib.suppress(Exception):
                stream.flush()
        self._flush_c(None)


def _problem(request: Union[wire.Load, wire.Compile]) -> tuple[Definition, Solution]:
    from flashinfer_bench.data import Definition, Solution

    definition = Definition.model_validate_json(request.definition)
    return definition, Solution.model_validate_json(request.solution)
