"""The loop of a candidate: read a request, do it, reply.

Whatever the solution raises becomes a reply; whatever breaks the conversation itself ends the
process. The loop guards against accidents of a solution, not against attacks: code of the
solution shares its memory, so the judge believes none of its replies.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.bench.candidate.device_control import DeviceControl
from flashinfer_bench.bench.candidate.enter import limit_threads
from flashinfer_bench.bench.candidate.failures import MAX_NAME, describe_failure
from flashinfer_bench.bench.candidate.processes import libc
from flashinfer_bench.bench.candidate.subject import Subject, is_usable
from flashinfer_bench.bench.candidate.timed_calls import Attached, InputSet, TimedCalls, require_few
from flashinfer_bench.bench.timing.base import collector_paused
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import PeerClosed
from flashinfer_bench.bench.transport.messages import clip
from flashinfer_bench.bench.transport.values import describe, plain_types
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.bench.confinement import SandboxMethod
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
    sandbox : SandboxMethod, optional
        How this process is confined.
    compiles_only : bool
        Refuse every request but `Compile`.
    """

    def __init__(
        self,
        channel: Channel,
        device: str,
        registry: BuilderRegistry,
        timers: Mapping[str, Union[Timer, Exception]],
        *,
        sandbox: Optional[SandboxMethod] = None,
        compiles_only: bool = False,
    ) -> None:
        self._sandbox = sandbox
        self._channel = channel
        self._device = device
        self._registry = registry
        self._timers = dict(timers)
        self._compiles_only = compiles_only
        self._subject: Optional[Subject] = None
        self._builder = ""
        self._sets: dict[int, InputSet] = {}
        self._attached: Optional[Attached] = None
        # Looked up now: the solution may replace them.
        self._device_control = DeviceControl(device, computes=not compiles_only)
        if not compiles_only:
            plain_types()
        self._timed_calls = TimedCalls(self._device_control)
        self._pid, self._getpid, self._exit = os.getpid(), os.getpid, os._exit
        self._flush_c = libc().fflush
        self._pause, self._paused = collector_paused(), False

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
        # Before anything can fail: the next request must be found where it begins.
        values = self._what_follows(request)
        try:
            reply, blobs = self._handle(request, values)
        except BaseException as error:  # noqa: BLE001 - candidate boundary: SystemExit and all
            reply, blobs = self._failure(request.token, error), ()
        if self._getpid() != self._pid:
            self._exit(0)  # a process that the solution forked has come back here
        self._flush()
        self._pause_collector(isinstance(request, (wire.Fire, wire.FireRound)))
        self._channel.send(reply, Deadline.never(), blobs)

    def _pause_collector(self, paused: bool) -> None:
        """Keep Python's garbage collector from running between timed calls."""
        if paused != self._paused:
            self._paused = paused
            if paused:
                self._pause.__enter__()
            else:
                self._pause.__exit__()

    def _what_follows(self, request: wire.Message) -> list[Any]:
        """Return the tensors, or open files, that come after a request."""
        if isinstance(request, wire.Attach):
            return self._channel.receive_descriptors(2, Deadline.never())
        records = request.values if isinstance(request, wire.PutInputs) else ()
        return self._channel.receive_values(records, Deadline.never())

    def _handle(self, request: wire.Message, values: list[Any]) -> Answer:
        if isinstance(request, wire.Confine):
            return self._confine(request), ()
        if isinstance(request, wire.Compile):
            return self._compile(request), ()
        if self._compiles_only:
            raise RunnerError("this process was started only to compile")
        if isinstance(request, wire.Load):
            return self._load(request), ()
        if isinstance(request, wire.PutInputs):
            return self._put_inputs(request, values), ()
        if isinstance(request, wire.Attach):
            return self._attach(request, values), ()
        return self._run(request)

    def _run(self, request: wire.Message) -> Answer:
        if isinstance(request, wire.Fire):
            return self._fire(request), ()
        if isinstance(request, wire.FireRound):
            return self._fire_round(request), ()
        if isinstance(request, wire.Collect):
            outputs = self._timed_calls.outputs_of(request.call)
            return self._outputs(request.token, outputs, request.budget)
        if isinstance(request, wire.Call):
            return self._call(request)
        raise RunnerError(f"{type(request).__name__} is not a request of a running session")

    def _confine(self, request: wire.Confine) -> wire.Message:
        if self._subject is not None or self._builder:
            raise RunnerError("a solution has run in this process; it is too late to confine it")
        if self._sandbox is None:
            return wire.Confined(request.token, [], {"sandbox": "none is installed"})
        try:
            held, lacking = self._sandbox.confine(
                request.writable,
                hidden=request.hidden,
                device=self._device,
                workdir=Path.cwd(),
            )
            applied = [str(name) for name in held]
            missing = {str(name): str(why) for name, why in lacking.items()}
        except Exception as error:  # noqa: BLE001 - plugin boundary: no fault of the solution
            applied, missing = [], {"sandbox": f"{type(error).__name__}: {error}"}
        return wire.Confined(request.token, applied, missing)

    def _compile(self, request: wire.Compile) -> wire.Message:
        definition, solution = _problem(request)
        self._builder = clip(self._registry.builder_of(solution), MAX_NAME)
        fresh = self._registry.compile(definition, solution)
        return wire.Compiled(request.token, self._builder, fresh)

    def _load(self, request: wire.Load) -> wire.Message:
        if self._device == "cpu":
            limit_threads()
        definition, solution = _problem(request)
        runnable = self._registry.build(definition, solution)
        self._subject = subject = Subject(definition, runnable, self._device_control)
        return wire.Loaded(request.token, subject.destination_passing_style)

    def _put_inputs(self, request: wire.PutInputs, values: list[Any]) -> wire.Message:
        self._sets.pop(request.slot, None)  # before the new ones need its memory
        self._timed_calls.drop()
        self._device_control.select()
        inputs = tuple(self._to_device(value) for value in values)
        self._sets[request.slot] = InputSet(inputs, request.axes)
        return wire.Done(request.token)

    def _attach(self, request: wire.Attach, descriptors: list[int]) -> wire.Message:
        self._device_control.select()
        self._attached = None
        self._timed_calls.drop()
        definition = self._loaded.definition
        self._attached = Attached(request, descriptors, definition, self._device)
        return wire.Done(request.token)

    def _to_device(self, value: Any) -> Any:
        if isinstance(value, (bool, int, float)):
            return value
        return value.to(self._device)

    def _call(self, request: wire.Call) -> Answer:
        outputs = self._loaded.call(self._inputs(request.slot))
        require_few(outputs)
        return self._outputs(request.token, outputs, request.budget)

    def _outputs(self, token: int, outputs: Sequence[Any], budget: int) -> Answer:
        records, blobs = [], []
        for output in outputs:
            record, blob = describe(output, budget)
            records.append(record)
            blobs.append(blob)
            budget -= blob.nbytes if blob is not None else 0
        return wire.Outputs(token, records), blobs

    def _fire(self, request: wire.Fire) -> wire.Message:
        timer, subject = self._timer(request.timer), self._loaded
        inputs, words = None, None
        if request.attached:
            attached = self._attached_with([request.slot])
            inputs, words = attached.sets[request.slot], attached.words
        else:
            inputs = self._inputs(request.slot)
        sample, values, places = self._timed_calls.fire(timer, subject, inputs, request, words)
        return wire.Fired(request.token, timer.version, sample, values, places, _notes_of(timer))

    def _fire_round(self, request: wire.FireRound) -> wire.Message:
        timer, attached = self._timer(request.timer), self._attached_with(request.slots)
        samples, values = self._timed_calls.fire_round(timer, self._loaded, attached, request)
        told = attached.gate is not None, _notes_of(timer)
        return wire.RoundFired(request.token, timer.version, samples, values, *told)

    def _attached_with(self, slots: Sequence[int]) -> Attached:
        attached = self._attached
        if attached is None or max(slots) >= len(attached.sets):
            raise RunnerError(f"no memory has been attached for slot {max(slots)}")
        return attached

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
            raise RunnerError(f"there is no timer {name!r} for {self._device}; available: {known}")
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


def _notes_of(timer: Timer) -> list[str]:
    return [clip(note, MAX_NAME) for note in timer.take_notes()[: wire.MAX_NOTES]]


def _problem(request: wire.Problem) -> tuple[Definition, Solution]:
    from flashinfer_bench.data import Definition, Solution

    definition = Definition.model_validate_json(request.definition)
    return definition, Solution.model_validate_json(request.solution)
