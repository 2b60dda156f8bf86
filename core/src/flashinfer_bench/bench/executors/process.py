"""The judge's handle to a candidate process: everything that it can be asked for."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from secrets import randbelow
from typing import TYPE_CHECKING, Any, NoReturn, Optional, TypeVar

from flashinfer_bench.bench.candidate.processes import freezer_of
from flashinfer_bench.bench.executors.base import (
    Attachment,
    Candidate,
    CandidateCrashed,
    CandidateError,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
    Compiled,
    Confinement,
    Loaded,
    Release,
    Round,
    Stage,
    TimedCall,
)
from flashinfer_bench.bench.executors.frozen import FrozenTree, why_not
from flashinfer_bench.bench.executors.handle import describe_exit
from flashinfer_bench.bench.executors.log import LogPipe, printable
from flashinfer_bench.bench.executors.threads import cores_of, keep_on, thread_times
from flashinfer_bench.bench.memory import ADDRESSES, DONE, ENQUEUED, GO, MOST_OUTPUTS, SEEN
from flashinfer_bench.bench.timing.base import collector_paused
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.channel import judge_end
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import PeerClosed, TruncatedFrame, wait_ready
from flashinfer_bench.bench.transport.values import describe, rebuild
from flashinfer_bench.errors import ProtocolError, RunnerError
from flashinfer_bench.tensors import span_of, tensor_from_span, to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence, Set

    from flashinfer_bench.bench.candidate.processes import Freezer
    from flashinfer_bench.bench.executors.handle import Endpoints, ProcessHandle
    from flashinfer_bench.data import Definition, Solution

# Outputs of a wrong shape are received, too, so that they can be looked at; up to this.
_SPARE_BYTES = 2**26
# A tensor may be spread out, such as a column of a matrix; what lies between is read with it.
_LONGEST_SPAN = 2**30
_FREEZE_TIMEOUT_S = 10.0
# How long a process may take to end after its connection has, before it is taken to be alive.
_END_GRACE_S = 2.0
# … after it has been killed. Tearing down a device context can take a while.
_KILL_TIMEOUT_S = 10.0
_ENDING_S = 1.0  # what a process may take that has been killed
_LOOKS = 5000  # at a word, some 0.2 ms, until it is seen whether there is another answer
_SPIN_S = 0.02
_SLEPT_SHARE = 0.001  # of what a long call has taken so far, is how late its end may be seen
_MS, _NS_PER_MS = 1e3, 1e6
_Times = tuple[float, float, float, float, float]
"""Milliseconds of a `TimedCall`: wall, secured, enqueued, woken, glance."""
ReplyT = TypeVar("ReplyT", bound=wire.Message)
_ATTACHED = -2  # number of the set whose axes are those of what is attached


@dataclass(frozen=True)
class _Returned:
    """What the last timed call has returned, as the process tells it."""

    slot: int
    values: list[wire.Value]
    places: list[Optional[wire.Place]]
    shown: list[list[Any]]


class ProcessCandidate(Candidate):
    """A candidate at the other end of a channel.

    Requests come from one thread at a time; `close` may be called from any.

    Parameters
    ----------
    process : ProcessHandle
        The running process.
    ends : Endpoints
        The judge's ends of channel and log pipe are the candidate's from now on.
    device : str
        What it works on.
    among : set of ProcessCandidate
        It is one of these until it is closed.
    """

    def __init__(
        self,
        process: ProcessHandle,
        ends: Endpoints,
        *,
        device: str,
        among: set[ProcessCandidate],
    ) -> None:
        self.pid = process.pid
        self._device = device
        self._process = process
        self._log = LogPipe(ends.log)
        self._channel = judge_end(ends.channel, wait=self._wait)
        self._lock = threading.RLock()
        self._stage: Stage = "start"  # what it has been asked for last
        self._usable = True
        self._closed = False
        # The process tree, if it has been stopped until the next request.
        self._frozen: Optional[FrozenTree] = None
        self._freezer: Optional[Freezer] = None
        self._definition: Optional[Definition] = None
        self._axes: dict[int, dict[str, int]] = {}
        self._returned: Optional[_Returned] = None
        self._memory = -1  # descriptor of the process's memory, if it can be read
        self._words: Optional[memoryview] = None
        self._has_gate = True
        self._among = among
        among.add(self)

    def await_ready(self, *, timeout_s: float) -> None:
        """Wait until the process takes requests; close it if it does not come to that.

        Raises
        ------
        RunnerError
            In that case, with what the process has printed.
        """
        try:
            with self._exchange("start", timeout_s) as deadline:
                reply = self._channel.receive(deadline)
                if not isinstance(reply, wire.Ready):
                    raise ProtocolError(f"its first message was {type(reply).__name__}")
        except CandidateError as error:
            raise RunnerError(f"{error}\n{self.log()}".strip()) from error
        finally:
            if not self.alive:
                self.close()

    def confine(
        self, writable: Sequence[str], *, hidden: Sequence[str] = (), timeout_s: float
    ) -> Confinement:
        """Have the process give up what a solution does not need; see `Candidate.confine`."""
        request = wire.Confine(new_token(), list(writable), list(hidden))
        with self._exchange("confine", timeout_s) as deadline:
            reply = self._ask(request, wire.Confined, deadline)
        missing = {printable(name): printable(why) for name, why in reply.missing.items()}
        return Confinement(tuple(map(printable, reply.applied)), missing)

    def compile(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Compiled:
        """Do the part of the build that other processes can use; see `Candidate.compile`."""
        request = wire.Compile(
            new_token(), definition.model_dump_json(), solution.model_dump_json()
        )
        with self._exchange("compile", timeout_s) as deadline:
            reply = self._ask(request, wire.Compiled, deadline)
        return Compiled(printable(reply.builder), reply.fresh)

    def load(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Loaded:
        """Build `solution` for `definition` in the process; see `Candidate.load`."""
        if self._definition is not None:
            raise ValueError(f"process {self.pid} already holds a solution; start another one")
        self._definition = definition
        started = time.perf_counter()
        request = wire.Load(new_token(), definition.model_dump_json(), solution.model_dump_json())
        with self._exchange("load", timeout_s) as deadline:
            self._look_at_memory()
            reply = self._ask(request, wire.Loaded, deadline)
        return Loaded(reply.destination_passing_style, time.perf_counter() - started)

    def put_inputs(
        self,
        slot: int,
        inputs: Sequence[Any],
        axes: Mapping[str, int],
        *,
        timeout_s: float,
    ) -> None:
        """Copy one set of inputs into the process; see `Candidate.put_inputs`."""
        described = [describe(value) for value in inputs]
        records, blobs = [record for record, _ in described], [blob for _, blob in described]
        request = wire.PutInputs(new_token(), slot, records, dict(axes))
        with self._exchange("inputs", timeout_s) as deadline:
            self._ask(request, wire.Done, deadline, blobs)
        self._axes[slot] = dict(axes)

    def call(self, slot: int, *, timeout_s: float) -> list[Any]:
        """Call the solution once and return its outputs; see `Candidate.call`."""
        budget = self._output_budget(slot)
        request = wire.Call(new_token(), slot, budget)
        with self._exchange("call", timeout_s) as deadline:
            reply = self._ask(request, wire.Outputs, deadline)
            return self._channel.receive_values(reply.values, deadline, budget=budget)

    def attach(self, attachment: Attachment, *, timeout_s: float) -> None:
        """Have the process map memory of the judge's; see `Candidate.attach`."""
        records = [describe(value, -1)[0] for value in attachment.inputs]
        room, page = attachment.memory, attachment.page
        request = wire.Attach(
            *(new_token(), room.tensor.numel(), records, list(attachment.places)),
            dict(attachment.axes),
        )
        with self._exchange("inputs", timeout_s) as deadline:
            self._channel.send(request, deadline)
            self._channel.send_descriptors([page.descriptor, room.descriptor], deadline)
            self._expect(request, wire.Done, self._channel.receive(deadline))
        self._words = page.words
        self._axes[_ATTACHED] = dict(attachment.axes)

    def fire(
        self,
        slot: int,
        *,
        timer: str,
        timeout_s: float,
        release: Optional[Release] = None,
        cold: bool = False,
        empty: Optional[bool] = None,
    ) -> TimedCall:
        """Make and time one call; see `Candidate.fire`."""
        attached = release is not None
        # Where the process does not stand still, inputs are written when the clock runs.
        rehearsals = 1 if release is None or release.stopped else 2
        request = wire.Fire(
            *(new_token(), slot, timer, new_token(), attached, cold),
            empty=empty is not None,
            into=bool(empty),
            rehearsals=rehearsals,
        )
        self._returned = None
        with self._exchange("time", timeout_s) as deadline, collector_paused():
            began = time.perf_counter()
            self._channel.send(request, deadline)
            took: Optional[_Times] = None
            if release is not None:
                took = self._released(request.go, release, deadline)
            payload = self._channel.receive(deadline)
            whole_ms = (time.perf_counter() - began) * _MS
            reply = self._expect(request, wire.Fired, payload)
            if attached and took is None:
                raise ProtocolError("it reported a call not answered in the shared page")
            if len(reply.places) != len(reply.values):
                raise ProtocolError(f"{len(reply.places)} places for {len(reply.values)} outputs")
            shown = [rebuild(value, None) for value in reply.values]
        number = _ATTACHED if attached else slot
        self._returned = _Returned(number, reply.values, reply.places, [shown])
        notes = tuple(map(printable, reply.notes))
        wall, secured, enqueued, woken, glance = took or (whole_ms, whole_ms, 0.0, 0.0, 0.0)
        told = timer, printable(reply.timer_version), notes
        times = reply.sample_ms, wall, secured, enqueued, woken
        return TimedCall(*times, *told, glance_ms=glance)

    def fire_round(
        self,
        calls: Round,
        *,
        timer: str,
        timeout_s: float,
        release: Release,
        empty: Optional[bool] = None,
    ) -> list[TimedCall]:
        """Make calls one after the other, and time each; see `Candidate.fire_round`."""
        go, ready, words = new_token(), new_token(), self._words
        assert words is not None
        request = wire.FireRound(
            *(new_token(), list(calls.slots), timer, go, ready, calls.gated, calls.touch),
            empty=empty is not None,
            into=bool(empty),
        )
        self._returned = None
        clock, took = time.perf_counter, None
        with self._exchange("time", timeout_s) as deadline, collector_paused():
            self._channel.send(request, deadline)
            patience = Deadline(min(calls.patience_s, deadline.remaining))
            try:
                waiting = self._await_word(words, SEEN, ready, patience) is not None
                enqueued = waiting and calls.gated
            except TimeoutError:  # it waits for the device, or enqueues too much
                waiting, enqueued = True, False
            if waiting:
                # Only now: until all is enqueued there may be much time. And at one go: the device
                # is with the waiting process again only after the gate has opened.
                release.fill()
                release.before()
                release.last()
                began = clock()
                words[GO] = go
                seen = self._await_word(words, DONE, go, deadline)
                if seen is not None:
                    release.answered(())
                    took = (seen - began) * _MS, (clock() - began) * _MS
                    release.after()
            words[GO] = go  # whatever it has said: something may be behind the gate
            payload = self._channel.receive(deadline)
            reply = self._expect(request, wire.RoundFired, payload)
            if took is None:
                raise ProtocolError("it reported calls not answered in the shared page")
            counts = len(reply.samples_ms), len(reply.values)
            if counts != (len(calls.slots), len(calls.slots)):
                raise ProtocolError(f"{counts} samples and results for {len(calls.slots)} calls")
            shown = [[rebuild(value, None) for value in values] for values in reply.values]
        self._returned = _Returned(_ATTACHED, reply.values[-1], [], shown)
        # Of calls that were not enqueued in time, this would be part of what the judge has seen.
        host_ms = words[ENQUEUED] / _NS_PER_MS / len(shown) if enqueued else 0.0
        self._has_gate = reply.gate
        told = timer, printable(reply.timer_version), tuple(map(printable, reply.notes))
        times = *took, host_ms, 0.0
        first, *others = reply.samples_ms
        call = TimedCall(first, *times, *told, shared=len(shown), gated=enqueued)
        return [call, *(replace(call, sample_ms=sample) for sample in others)]

    def _released(self, go: int, release: Release, deadline: Deadline) -> Optional[_Times]:
        """Release a call, and return the times of a `TimedCall`.

        None if the process has something else to say.
        """
        words = self._words
        assert words is not None
        if self._await_spinning(words, deadline, release.prepare) is None:
            return None
        thawed: Optional[float] = None
        if release.stopped and self._memory >= 0:
            frozen = self._freeze(deadline)
            try:
                release.fill()
                self._require_still(frozen)
            finally:
                thawed = time.perf_counter()  # before: with many processes it takes long
                frozen.thaw()
        else:
            release.fill()
        spinning = self._await_spinning(words, deadline)
        if spinning is None:
            return None
        woken_ms = 0.0 if thawed is None else (spinning - thawed) * _MS
        release.before()
        look = partial(release.glance, words[ADDRESSES : ADDRESSES + MOST_OUTPUTS])
        clock, answered = time.perf_counter, [0.0]

        def glance() -> None:
            answered[0] = clock()
            look()

        began = clock()
        release.last()
        words[GO] = go
        seen = self._await_word(words, DONE, go, deadline, glance)
        if seen is None:
            return None
        release.answered(words[ADDRESSES : ADDRESSES + MOST_OUTPUTS])
        secured = clock()
        release.after()
        wall_ms, secured_ms = (seen - began) * _MS, (secured - began) * _MS
        glance_ms = (seen - answered[0]) * _MS
        return wall_ms, secured_ms, words[ENQUEUED] / _NS_PER_MS, woken_ms, glance_ms

    def _await_spinning(
        self, words: memoryview, deadline: Deadline, meanwhile: Callable[[], object] = lambda: None
    ) -> Optional[float]:
        """Wait until the process does nothing but look at the page."""
        words[GO] = word = new_token()
        meanwhile()
        return self._await_word(words, SEEN, word, deadline)

    def _await_word(
        self,
        words: memoryview,
        place: int,
        wanted: int,
        deadline: Deadline,
        at_once: Callable[[], object] = lambda: None,
    ) -> Optional[float]:
        """Return when a word was there, after a call of `at_once`.

        None if a message comes, or the process ends, before.
        """
        clock = time.perf_counter
        began = clock()
        while True:
            for _ in range(_LOOKS):
                if words[place] == wanted:
                    at_once()
                    return clock()
            waited_s = clock() - began
            self._log.drain()  # or who prints much waits for ever
            if self._channel.is_readable() or self._process.ended():
                if words[place] != wanted:
                    return None
                at_once()
                return clock()
            if deadline.expired:
                raise TimeoutError
            if waited_s > _SPIN_S:
                time.sleep(waited_s * _SLEPT_SHARE)

    @property
    def has_gate(self) -> bool:
        """Whether calls can be enqueued behind a gate; see `Candidate.has_gate`."""
        return self._has_gate

    def places(self) -> list[Optional[tuple[int, int]]]:
        """Return where what was returned lies; see `Candidate.places`."""
        found = self._returned.places if self._returned is not None else []
        return [None if place is None else (place.address, place.span) for place in found]

    def returned(self, call: int = 0) -> list[Any]:
        """Return what was returned, without elements; see `Candidate.returned`."""
        shown = self._returned.shown if self._returned is not None else []
        return list(shown[call]) if call < len(shown) else []

    def peeker(
        self, starts: Sequence[int], nbytes: int
    ) -> Optional[Callable[[int], Optional[bytes]]]:
        """Return what reads pieces of the process's memory; see `Candidate.peeker`."""
        if self._memory < 0:
            return None
        file, read, whole = self._memory, os.pread, nbytes * len(starts)

        def at(address: int) -> Optional[bytes]:
            try:
                found = b"".join([read(file, nbytes, address + start) for start in starts])
            except (OSError, OverflowError):  # no such address
                return None
            return found if len(found) == whole else None  # there is no such process any more

        return at

    def collect(self, *, timeout_s: float, call: int = 0) -> list[Any]:
        """Return what a timed call returned; see `Candidate.collect`."""
        returned = self._returned
        slot = returned.slot if returned is not None else -1
        budget = self._output_budget(slot)
        with self._exchange("time", timeout_s) as deadline:
            told = returned is not None and len(returned.places) == len(returned.values)
            if returned is None or self._memory < 0 or not told:
                return self._ask_for_outputs(call, budget, deadline)
            for value, place in zip(returned.values, returned.places, strict=True):
                if isinstance(value, wire.TensorValue) and place is None:
                    # What has no address on the CPU cannot be sent either: the process says why.
                    self._ask_for_outputs(call, budget, deadline)
                    raise ProtocolError("it sent a tensor whose address it had not reported")
            return self._read(returned, budget, deadline)

    def _ask_for_outputs(self, call: int, budget: int, deadline: Deadline) -> list[Any]:
        request = wire.Collect(new_token(), budget, call)
        reply = self._ask(request, wire.Outputs, deadline)
        return self._channel.receive_values(reply.values, deadline, budget=budget)

    def _read(self, returned: _Returned, budget: int, deadline: Deadline) -> list[Any]:
        """Stop the process tree until the next request, and read the outputs from its memory."""
        self._frozen = frozen = self._freeze(deadline)
        try:
            values = []
            for value, shown, place in zip(
                returned.values, returned.shown[0], returned.places, strict=True
            ):
                values.append(_read_value(frozen, value, shown, place, budget))
                budget -= _size_of(values[-1])
            self._require_still(frozen)
        except ProcessLookupError as error:
            raise PeerClosed("the process has ended") from error
        except PermissionError as error:
            raise ProtocolError("it has made its memory unreadable") from error
        return values

    def rest(self, *, timeout_s: float) -> None:
        """Stop the process tree until the next request; see `Candidate.rest`."""
        if self._memory < 0 or self._frozen is not None:
            return
        with self._exchange("time", timeout_s) as deadline:
            self._frozen = self._freeze(deadline)

    def _freeze(self, deadline: Deadline) -> FrozenTree:
        try:
            timeout_s = min(deadline.remaining, _FREEZE_TIMEOUT_S)
            return FrozenTree(self.pid, self._freezer, timeout_s=timeout_s)
        except ProcessLookupError as error:
            raise PeerClosed("the process has ended") from error
        except PermissionError as error:
            raise ProtocolError("it has a process that cannot be stopped") from error

    def _require_still(self, frozen: FrozenTree) -> None:
        """Raise `ProtocolError` if something moves; `PeerClosed` if that is the process's end."""
        try:
            frozen.require_still()
        except (ProtocolError, ProcessLookupError) as error:
            if self._process.wait(Deadline(_ENDING_S)):
                raise PeerClosed("the process has ended") from error
            raise

    def thread_times(self) -> dict[int, int]:
        """Return the processor time of each thread; see `Candidate.thread_times`."""
        return thread_times(self.pid)

    def keep_on(self, cores: Set[int]) -> bool:
        """Keep the process on some cores; see `Candidate.keep_on`."""
        return self.alive and keep_on(cores, self.pid)

    def cores(self) -> frozenset[int]:
        """Return the cores that it may be on; see `Candidate.cores`."""
        return cores_of(self.pid)

    def _look_at_memory(self) -> None:
        """Find out whether memory can be read, as long as no solution could prevent it."""
        if self._device != "cpu" or why_not() is not None:
            return
        try:
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        self._freezer = freezer_of(self.pid)

    def _output_budget(self, slot: int) -> int:
        """Return how many bytes of outputs to take: what is declared, and room for mistakes."""
        axes = self._axes.get(slot)
        if self._definition is None or axes is None:
            return _SPARE_BYTES  # there will be none
        shapes, specs = self._definition.get_output_shapes(axes), self._definition.outputs.values()
        sizes = (
            prod(shape or ()) * to_torch_dtype(spec.dtype).itemsize
            for shape, spec in zip(shapes, specs, strict=True)
        )
        return 2 * sum(sizes) + _SPARE_BYTES

    def log(self) -> str:
        """Return what the process has printed so far; see `Candidate.log`."""
        with self._lock:
            self._log.drain()
            return self._log.text()

    @property
    def alive(self) -> bool:
        """Whether the process can take another request."""
        return self._usable and not self._closed and not self._process.ended()

    def close(self) -> None:
        """Kill the whole process group; idempotent, never raises."""
        if self._closed:
            return
        # A request in another thread ends when the process does, and lets go of the lock.
        if not self._lock.acquire(blocking=False):
            self._process.kill()
            self._lock.acquire()
        try:
            if not self._closed:
                self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        self._closed = True
        try:
            self._kill()
        finally:  # also when Ctrl-C comes in the middle of it
            self._release()

    def _release(self) -> None:
        file, self._memory = self._memory, -1
        if file >= 0:
            os.close(file)
        self._freezer = None
        self._log.drain()
        self._log.close()
        self._channel.close()
        self._process.close()
        self._among.discard(self)

    def _kill(self) -> None:
        self._usable = False
        self._process.kill()
        self._process.wait(Deadline(_KILL_TIMEOUT_S))
        self._thaw()

    def _thaw(self) -> None:
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            frozen.thaw()

    @contextmanager
    def _exchange(self, stage: Stage, timeout_s: float) -> Iterator[Deadline]:
        """Hold the conversation for one request; what goes wrong becomes a `CandidateError`."""
        with self._lock:
            self._stage = stage
            if not self.alive:
                raise self._crash()
            self._thaw()
            deadline = Deadline(timeout_s)
            try:
                yield deadline
            except CandidateFailed:
                raise
            except TimeoutError:
                self._kill()
                limit = f"{timeout_s:g} s"
                raise CandidateTimeout(f"no answer within {limit}; killed", stage=stage) from None
            except (PeerClosed, TruncatedFrame) as error:
                self._on_disconnect(error)
            except ProtocolError as error:
                self._kill()
                raise CandidateMisbehaved(printable(error.message), stage=stage) from error
            except BaseException:
                # Ctrl-C, for one: what the process sends next belongs to this request.
                self._usable = False
                raise

    def _on_disconnect(self, error: Exception) -> NoReturn:
        self._usable = False
        if self._process.wait(Deadline(_END_GRACE_S)):
            raise self._crash() from error
        self._kill()
        raise CandidateMisbehaved("it closed its channel; killed", stage=self._stage) from error

    def _crash(self) -> CandidateCrashed:
        code = self._process.exit_code
        if code is None and not self._process.ended():
            what = "cannot be used after an earlier failure"
        else:
            what = describe_exit(code)
        return CandidateCrashed(f"the worker {what}", stage=self._stage, exit_code=code)

    def _ask(
        self,
        request: wire.Message,
        expected: type[ReplyT],
        deadline: Deadline,
        blobs: Sequence[Optional[memoryview]] = (),
    ) -> ReplyT:
        self._channel.send(request, deadline, blobs)
        return self._expect(request, expected, self._channel.receive(deadline))

    def _expect(self, request: wire.Message, expected: type[ReplyT], reply: wire.Message) -> ReplyT:
        if reply.token != request.token:
            raise ProtocolError("it answered another request")
        if isinstance(reply, wire.Failed):
            self._usable = not reply.fatal
            kind, message, trace = map(printable, (reply.kind, reply.message, reply.traceback))
            text = f"{kind}: {message}" if message else kind
            raise CandidateFailed(
                text,
                stage=self._stage,
                kind=kind,
                traceback=trace,
                about=reply.about,
                builder=printable(reply.builder),
            )
        if not isinstance(reply, expected):
            raise ProtocolError(f"got {type(reply).__name__} instead of {expected.__name__}")
        return reply

    def _wait(self, fd: int, events: int, deadline: Deadline) -> None:
        """Wait for the channel, read the log meanwhile, and notice when the process ends."""
        while True:
            poller = select.poll()
            poller.register(fd, events)
            for other in (self._log.fileno(), self._process.fileno()):
                if other >= 0:
                    poller.register(other, select.POLLIN)
            ready = {found for found, _ in poller.poll(deadline.poll_ms(self._process.look_s))}
            if fd in ready:  # first: the judge's clock may run
                return
            if self._log.fileno() in ready:
                self._log.drain()
            if self._process.ended():
                try:
                    wait_ready(fd, events, Deadline(0))  # it may have sent something before
                except TimeoutError:
                    raise PeerClosed("the process has ended") from None
                return
            if deadline.expired:
                raise TimeoutError


def new_token() -> int:
    """Return a number by which the answer to a request is known."""
    return randbelow(2**53)


def _read_value(
    frozen: FrozenTree, value: wire.Value, shown: Any, place: Optional[wire.Place], budget: int
) -> Any:
    """Return one output; nothing that the process tells about it is believed.

    Raises
    ------
    ProtocolError
        If shape, size, strides and address cannot all be true.
    """
    if not isinstance(value, wire.TensorValue):
        return shown
    if value.nbytes != shown.numel() * shown.element_size():
        raise ProtocolError(f"{value.nbytes} bytes do not fit {value.dtype} {value.shape}")
    if value.nbytes > budget:
        return shown  # on device meta, as of `Candidate.call`
    assert place is not None
    if len(place.strides) != len(value.shape):
        raise ProtocolError(f"strides {place.strides} for a tensor of shape {value.shape}")
    span = span_of(value.shape, place.strides, shown.element_size())
    if span != place.span or span > budget + _LONGEST_SPAN:
        raise ProtocolError(
            f"{value.dtype} {value.shape} with strides {place.strides} spans {span} bytes; "
            f"it reported {place.span}, and {budget + _LONGEST_SPAN} are allowed"
        )
    memory = frozen.read(place.address, span)
    return tensor_from_span(value.dtype, value.shape, place.strides, memory)


def _size_of(value: Any) -> int:
    if not hasattr(value, "element_size") or value.is_meta:
        return 0
    return int(value.numel() * value.element_size())
