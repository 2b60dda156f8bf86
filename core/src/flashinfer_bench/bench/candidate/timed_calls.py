"""Timed calls, and what the last one returned.

The judge fills the inputs itself, in memory that it has handed over, and releases a call by a word
in a shared page. Nothing that happens here before that word tells the values; nothing after the
answer is believed without a look.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench import memory
from flashinfer_bench.bench.timing.base import EnqueuedCall
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.values import announce, plain, plain_types, rebuild
from flashinfer_bench.errors import CapabilityError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from flashinfer_bench.bench.candidate.device_control import DeviceControl
    from flashinfer_bench.bench.candidate.subject import Subject
    from flashinfer_bench.bench.timing.base import Timer
    from flashinfer_bench.data import Definition


_SHORT_S = 5e-3  # a call that is rehearsed
_SHORTEST_S, _REHEARSALS = 1e-4, 3


@dataclass(frozen=True)
class InputSet:
    """The arguments of a call.

    Attributes
    ----------
    values : tuple
        Tensors on the device and Python scalars, in the order of the definition.
    axes : mapping
        Value of every variable axis.
    outputs : list of torch.Tensor
        The judge's memory for what comes out; empty for inputs that were put.
    room : torch.Tensor, optional
        All bytes of the inputs, in the judge's memory.
    """

    values: tuple[Any, ...]
    axes: Mapping[str, int]
    outputs: list[Any] = field(default_factory=list)
    room: Optional[torch.Tensor] = None


class Attached:
    """Sets of inputs in memory of the judge's, and the page by which it releases calls.

    Parameters
    ----------
    request : Attach
        What lies where.
    descriptors : sequence of int
        Of the page and of the memory.
    definition : Definition
        Declares the outputs.
    device : str
        Whose memory it is.
    """

    def __init__(
        self,
        request: wire.Attach,
        descriptors: Sequence[int],
        definition: Definition,
        device: str,
    ) -> None:
        self._held = [
            memory.Memory(0, descriptors[0]),
            memory.memory_on(device, request.nbytes, descriptors[1]),
        ]
        self.words: memoryview = self._held[0].words
        self.sets = [
            _set_at(self._held[1].tensor, places, request, definition) for places in request.places
        ]
        self.some: torch.Tensor = self._held[1].tensor[: memory.ALIGNMENT]
        self.gate: Any = None
        if device != "cpu":
            with suppress(CapabilityError):
                self.gate = memory.gate_on(self._held[0])


def _set_at(
    room: torch.Tensor, places: list[int], request: wire.Attach, definition: Definition
) -> InputSet:
    starts = iter(places)
    values = tuple(
        memory.tensor_at(room, next(starts), value.shape, value.dtype)
        if isinstance(value, wire.TensorValue)
        else rebuild(value, None)
        for value in request.values
    )
    shapes = definition.get_output_shapes(request.axes)
    outputs = [
        memory.tensor_at(room, next(starts), shape or (), spec.dtype)
        for shape, spec in zip(shapes, definition.outputs.values(), strict=True)
    ]
    inputs = sum(isinstance(value, wire.TensorValue) for value in request.values)
    first, end = (places[0], places[inputs]) if outputs else (0, 0)
    return InputSet(values, request.axes, outputs, room[first:end])


class TimedCalls:
    """Makes timed calls, and keeps what the last one returned.

    Parameters
    ----------
    device_control : DeviceControl
        Waits for the device, and flushes its caches.
    """

    def __init__(self, device_control: DeviceControl) -> None:
        self._device_control = device_control
        self._outputs: list[list[Any]] = []
        self._took_s = 0.0

    def drop(self) -> None:
        """Let go of what the last call returned."""
        self._outputs = []

    def fire(
        self, timer: Timer, subject: Subject, inputs: InputSet, request: wire.Fire, words: Any
    ) -> tuple[float, list[wire.Value], list[Optional[wire.Place]]]:
        """Make and time one call.

        Parameters
        ----------
        timer : Timer
            Takes the latency.
        subject : Subject
            What is called.
        inputs : InputSet
            With what.
        request : Fire
            How.
        words : memoryview, optional
            The page by which the judge releases it; None for inputs that were put.

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
        TypeError
            If something was returned that cannot be sent.
        """
        self.drop()  # its memory is to be had again
        wait, device = self._device_control.synchronize, self._device_control.device
        given = inputs.outputs or subject.new_outputs(inputs)
        into = request.into if request.empty else subject.destination_passing_style
        outputs = given if into else []
        arguments = (*inputs.values, *outputs)
        # On the CPU the judge's clock is all that counts: nothing else is done while it runs.
        timed = words is None or device != "cpu"
        nothing = _nothing(outputs, given, device)
        function = nothing if request.empty else subject.function
        tell = _teller(words, given, outputs, device)
        listed = subject.listed
        tensor: Any = plain_types()[0]

        def once(function: Callable[..., Any], mark: int) -> tuple[float, list[Any]]:
            if timed:
                sample, result = timer.time_call(function, arguments, device=device)
            else:
                sample, result = 0.0, function(*arguments)
            if device != "cpu":
                wait()  # whatever the timer was that has answered
            if outputs:
                found = outputs
            elif type(result) is tensor and _is_as_stored(result):
                found = [result]  # the same, sooner
            else:
                found = [_dense(plain(one)) for one in listed(result, outputs)]
            if words is not None:
                tell(found)
                words[memory.DONE] = mark
            return sample, found

        if words is None and request.cold:
            self._device_control.flush_caches()  # where the judge does not write inputs anew
        if device != "cpu":
            function = _timing_the_host(function, words)
        if words is not None:
            go, at_go, seen = request.go, memory.GO, memory.SEEN
            last = go
            # A solution could warm itself up before its release, on what lies there from an earlier
            # call. So all are, where it takes little time; after that, this code alone.
            rehearsals = request.rehearsals if self._took_s < _SHORT_S else 0
            while (word := words[at_go]) != go:
                if word != last and device == "cpu":
                    for _ in range(_REHEARSALS if self._took_s < _SHORTEST_S else 1):
                        once(function if rehearsals > 0 else nothing, 0)
                    rehearsals -= 1
                words[seen] = last = word
        began = time.perf_counter()
        sample, found = once(function, request.go)
        self._took_s = time.perf_counter() - began
        described = self._kept(found)
        return sample, [value for value, _ in described], [place for _, place in described]

    def fire_round(
        self, timer: Timer, subject: Subject, attached: Attached, request: wire.FireRound
    ) -> tuple[list[float], list[list[wire.Value]]]:
        """Make calls one after the other, which the judge releases together.

        Parameters
        ----------
        timer : Timer
            Takes their latencies, if they are behind a gate.
        subject : Subject
            What is called.
        attached : Attached
            With what.
        request : FireRound
            How.

        Returns
        -------
        milliseconds : list of float
            Their latencies.
        values : list of list of Value
            What was returned, as of `fire`.

        Raises
        ------
        TypeError
            As of `fire`.
        """
        self.drop()
        control, words, clock = self._device_control, attached.words, time.perf_counter
        device, wait = control.device, control.synchronize
        into = request.into if request.empty else subject.destination_passing_style
        sets = [attached.sets[slot] for slot in request.slots]
        functions = [subject.function] * len(sets)
        if request.empty:
            functions = [_nothing(one.outputs if into else [], one.outputs, device) for one in sets]
        timer.prepare(device)  # before a gate is wanted: it takes longer than one stays shut
        gated = request.gated and attached.gate is not None
        if gated:
            gated = control.shut(attached.gate, memory.GO, request.go)
        if not gated:
            # Not ready if the gate is missing: then the judge asks for a round without.
            words[memory.SEEN] = 0 if request.gated else request.ready
            while words[memory.GO] != request.go:
                pass
            # Nothing is timed until the device, which was the judge's, is with this process again.
            control.read(attached.some)
        found: list[list[Any]] = []
        calls = [
            EnqueuedCall(
                partial(control.read, inputs.room) if request.touch else _pass,
                partial(_called, function, subject, inputs, into),
                partial(_keep, inputs, found),
            )
            for function, inputs in zip(functions, sets, strict=True)
        ]
        began = clock()
        if gated:
            latencies = timer.enqueue_calls(calls, device=device)
        else:
            samples = [_timed_on_host(call, wait) for call in calls]
        words[memory.ENQUEUED] = int((clock() - began) * 1e9)
        if gated:
            words[memory.SEEN] = request.ready
        wait()
        words[memory.DONE] = request.go
        samples = latencies() if gated else samples
        described = [self._kept(one) for one in found]
        return samples, [[value for value, _ in one] for one in described]

    def _kept(self, found: list[Any]) -> list[tuple[wire.Value, Optional[wire.Place]]]:
        require_few(found)
        self._outputs.append([plain(one) for one in found])
        return [announce(output) for output in self._outputs[-1]]

    def outputs_of(self, call: int) -> list[Any]:
        """Return what a call of the last exchange returned.

        Raises
        ------
        RunnerError
            If none has been made.
        """
        if call >= len(self._outputs):
            raise RunnerError("there is no fired call to collect")
        return self._outputs[call]


def _called(
    function: Callable[..., Any], subject: Subject, inputs: InputSet, into: bool
) -> list[Any]:
    """Make a call; return its outputs, which are contiguous."""
    if into:
        function(*inputs.values, *inputs.outputs)
        return inputs.outputs
    found = [plain(one) for one in subject.listed(function(*inputs.values), [])]
    return [one if _is_contiguous(one) else one.contiguous() for one in found]


def _keep(inputs: InputSet, found: list[list[Any]], outputs: list[Any]) -> None:
    found.append(outputs)
    if outputs is not inputs.outputs:
        _copy(outputs, inputs.outputs)


def _timed_on_host(call: EnqueuedCall, wait: Callable[[], object]) -> float:
    """Make a call, and wait for the device; return how many milliseconds that took."""
    call.before()
    wait()
    began = time.perf_counter()
    result = call.function()
    wait()
    took_ms = (time.perf_counter() - began) * 1e3
    call.after(result)
    return took_ms


def _pass() -> None:
    """Do nothing."""


def _timing_the_host(function: Callable[..., Any], words: Any) -> Callable[..., Any]:
    """Return a function that also tells how long it took to return."""
    if words is None:
        return function
    clock, place = time.perf_counter_ns, memory.ENQUEUED

    def timed(*arguments: Any) -> Any:
        began = clock()
        result = function(*arguments)
        words[place] = clock() - began
        return result

    return timed


def _nothing(outputs: list[Any], given: list[Any], device: str) -> Callable[..., Any]:
    """Return a function in place of a solution's, which computes nothing."""
    result: Any = None
    if not outputs:
        # On a device they are copied, which takes time as well.
        returned = given if device == "cpu" else [one.clone() for one in given]
        result = returned[0] if len(returned) == 1 else tuple(returned)
    small = given[0].new_empty(1) if device != "cpu" and given else None

    def nothing(*arguments: Any) -> Any:
        if small is not None:
            small.zero_()  # a timer of a device has to see something
        return result

    return nothing


def _teller(
    words: Any, places: list[Any], outputs: list[Any], device: str
) -> Callable[[list[Any]], None]:
    """Return what tells the judge where the tensors are that a call has returned.

    They are told as they will be announced. A device's memory the judge cannot read from outside:
    there they are copied to the judge's.
    """
    tensor: Any = plain_types()[0]
    first, most = memory.ADDRESSES, memory.MOST_OUTPUTS

    def tell(found: list[Any]) -> None:
        for number, one in enumerate(found[:most]):
            words[first + number] = one.data_ptr() if type(one) is tensor else _word_of(one)

    def copy(found: list[Any]) -> None:
        _copy(found, places)
        synchronize()

    if outputs:
        return lambda found: None
    if device == "cpu":
        return tell
    import torch

    synchronize = partial(torch.cuda.synchronize, device)
    return copy


def _copy(found: list[Any], places: list[Any]) -> None:
    """Enqueue copies of what was returned to the judge's memory, where it is as declared."""
    tensor: Any = plain_types()[0]
    for one, place in zip(found, places, strict=False):
        if type(one) is tensor and _alike(one, place):
            place.copy_(one)
        elif isinstance(one, (bool, int, float)) and not place.shape:
            with suppress(OverflowError, RuntimeError):  # the judge says what is wrong with it
                place.fill_(one)


def _word_of(value: Any) -> int:
    return memory.word_of(value) if isinstance(value, (bool, int, float)) else 0


def _dense(value: Any) -> Any:
    """Return a tensor without gaps or overlaps, whose memory is its elements in some order.

    Only so can the judge see by a look here and there that all of it is there.
    """
    if _is_contiguous(value):
        return value
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return value.contiguous()
        expected *= size
    return value


def _is_contiguous(one: Any) -> bool:
    return type(one) not in plain_types() or one.layout is not _strided() or one.is_contiguous()


def _is_as_stored(one: torch.Tensor) -> bool:
    return one.is_contiguous() and not (one.is_conj() or one.is_neg())


def _strided() -> Any:
    import torch

    return torch.strided


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def require_few(outputs: Sequence[Any]) -> None:
    """Raise `TypeError` if there are more outputs than a message may announce."""
    if len(outputs) > wire.MAX_VALUES:
        raise TypeError(f"{len(outputs)} outputs were returned; {wire.MAX_VALUES} can be sent")
