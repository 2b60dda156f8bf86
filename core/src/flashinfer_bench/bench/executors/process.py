"""The judge's handle to a candidate process: requests, deadlines, log, and the end of it."""

from __future__ import annotations

import select
import threading
import time
from contextlib import contextmanager
from math import prod
from secrets import randbelow
from typing import TYPE_CHECKING, Any, NoReturn, Optional, TypeVar

from flashinfer_bench.bench.executors.base import (
    Candidate,
    CandidateCrashed,
    CandidateError,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
    Compiled,
    Loaded,
    Stage,
    Timing,
)
from flashinfer_bench.bench.executors.exits import describe_exit
from flashinfer_bench.bench.executors.log import LogPipe, printable
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.channel import judge_end
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import PeerClosed, TruncatedFrame, wait_ready
from flashinfer_bench.bench.transport.values import describe
from flashinfer_bench.errors import ProtocolError, RunnerError
from flashinfer_bench.tensors import to_torch_dtype

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashinfer_bench.bench.executors.handle import ProcessHandle
    from flashinfer_bench.data import Definition, Solution

ReplyT = TypeVar("ReplyT", bound=wire.Message)

# How long a process may take to end after its connection has, before it is taken to be alive.
_END_GRACE_S = 2.0
# … after it has been killed. Tearing down a device context can take a while.
_KILL_TIMEOUT_S = 10.0
# Outputs of a wrong shape are received, too, so that they can be looked at; up to this.
_SPARE_BYTES = 2**26


class ProcessCandidate(Candidate):
    """A candidate at the other end of a channel.

    Requests come from one thread at a time; `close` may be called from any.

    Parameters
    ----------
    process : ProcessHandle
        The running process.
    sock : socket.socket
        The judge's end of the channel.
    log_fd : int
        The reading end of its log pipe.
    on_close : callable, optional
        Called with the candidate once it is closed.
    """

    def __init__(
        self,
        process: ProcessHandle,
        sock: socket.socket,
        log_fd: int,
        *,
        on_close: Optional[Callable[[ProcessCandidate], None]] = None,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._log = LogPipe(log_fd)
        self._channel = judge_end(sock, wait=self._wait)
        self._on_close = on_close
        self._lock = threading.RLock()
        self._usable = True
        self._closed = False
        self._definition: Optional[Definition] = None
        self._axes: dict[int, dict[str, int]] = {}

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
                    raise ProtocolError(f"it began with {type(reply).__name__}")
        except CandidateError as error:
            raise RunnerError(f"{error}\n{self.log()}".strip()) from error
        finally:
            if not self.alive:
                self.close()

    def compile(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Compiled:
        """Do the part of the build that other processes can use; see `Candidate.compile`."""
        started = time.perf_counter()
        request = wire.Compile(_token(), definition.model_dump_json(), solution.model_dump_json())
        with self._exchange("compile", timeout_s) as deadline:
            reply = self._ask("compile", request, wire.Compiled, deadline)
        seconds = time.perf_counter() - started
        return Compiled(printable(reply.builder), reply.fresh, seconds)

    def load(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Loaded:
        """Build `solution` for `definition` in the process; see `Candidate.load`."""
        if self._definition is not None:
            raise ValueError(f"process {self.pid} already holds a solution; start another one")
        self._definition = definition
        started = time.perf_counter()
        request = wire.Load(_token(), definition.model_dump_json(), solution.model_dump_json())
        with self._exchange("load", timeout_s) as deadline:
            reply = self._ask("load", request, wire.Loaded, deadline)
        seconds = time.perf_counter() - started
        return Loaded(printable(reply.build_type), reply.destination_passing_style, seconds)

    def put_inputs(
        self, slot: int, inputs: Sequence[Any], axes: Mapping[str, int], *, timeout_s: float
    ) -> None:
        """Copy one set of inputs into the process; see `Candidate.put_inputs`."""
        described = [describe(value) for value in inputs]
        records, blobs = [record for record, _ in described], [blob for _, blob in described]
        request = wire.PutInputs(_token(), slot, records, dict(axes))
        with self._exchange("inputs", timeout_s) as deadline:
            self._ask("inputs", request, wire.Done, deadline, blobs)
        self._axes[slot] = dict(axes)

    def call(self, slot: int, *, timeout_s: float) -> list[Any]:
        """Call the solution once and return its outputs; see `Candidate.call`."""
        budget = self._output_budget(slot)
        request = wire.Call(_token(), slot, budget)
        with self._exchange("call", timeout_s) as deadline:
            reply = self._ask("call", request, wire.Outputs, deadline)
            return self._channel.receive_values(reply.values, deadline, budget=budget)

    def time(
        self,
        slots: Sequence[int],
        *,
        timer: str,
        warmup: int,
        iterations: int,
        timeout_s: float,
    ) -> Timing:
        """Time calls of the solution; see `Candidate.time`."""
        request = wire.Time(_token(), list(slots), timer, warmup, iterations)
        started = time.perf_counter()
        with self._exchange("time", timeout_s) as deadline:
            reply = self._ask("time", request, wire.Timed, deadline)
            if len(reply.samples_ms) != iterations:
                raise ProtocolError(f"{len(reply.samples_ms)} samples of {iterations} calls")
        wall_s = time.perf_counter() - started
        names = printable(reply.timer), printable(reply.timer_version)
        notes = tuple(printable(note) for note in reply.notes)
        return Timing(tuple(reply.samples_ms), *names, wall_s, notes)

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
        self._log.drain()
        self._log.close()
        self._channel.close()
        self._process.close()
        if self._on_close is not None:
            self._on_close(self)

    def _kill(self) -> None:
        self._usable = False
        self._process.kill()
        self._process.wait(Deadline(_KILL_TIMEOUT_S))

    def _output_budget(self, slot: int) -> int:
        """Return how many bytes of outputs to take: what is declared, and room for mistakes."""
        axes = self._axes.get(slot)
        if self._definition is None or axes is None:
            return _SPARE_BYTES  # there will be none
        shapes = self._definition.get_output_shapes(axes)
        sizes = (
            prod(shape or ()) * to_torch_dtype(spec.dtype).itemsize
            for shape, spec in zip(shapes, self._definition.outputs.values(), strict=True)
        )
        return 2 * sum(sizes) + _SPARE_BYTES

    @contextmanager
    def _exchange(self, stage: Stage, timeout_s: float) -> Iterator[Deadline]:
        """Hold the conversation for one request; what goes wrong becomes a `CandidateError`."""
        with self._lock:
            if not self.alive:
                raise self._crash(stage)
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
                self._on_disconnect(stage, error)
            except ProtocolError as error:
                self._kill()
                raise CandidateMisbehaved(printable(error.message), stage=stage) from error
            except BaseException:
                # Ctrl-C, for one: what the process sends next belongs to this request.
                self._usable = False
                raise

    def _on_disconnect(self, stage: Stage, error: Exception) -> NoReturn:
        self._usable = False
        if self._process.wait(Deadline(_END_GRACE_S)):
            raise self._crash(stage) from error
        self._kill()
        raise CandidateMisbehaved("it closed its channel; killed", stage=stage) from error

    def _crash(self, stage: Stage) -> CandidateCrashed:
        code = self._process.exit_code
        if code is None and not self._process.ended():
            what = "cannot be used after what happened before"
        else:
            what = describe_exit(code)
        return CandidateCrashed(f"the candidate process {what}", stage=stage, exit_code=code)

    def _ask(
        self,
        stage: Stage,
        request: wire.Message,
        expected: type[ReplyT],
        deadline: Deadline,
        blobs: Sequence[Optional[memoryview]] = (),
    ) -> ReplyT:
        self._channel.send(request, deadline, blobs)
        reply = self._channel.receive(deadline)
        if reply.token != request.token:
            raise ProtocolError("an answer to another request came")
        if isinstance(reply, wire.Failed):
            self._usable = not reply.fatal
            kind, message, trace = map(printable, (reply.kind, reply.message, reply.traceback))
            text = f"{kind}: {message}" if message else kind
            raise CandidateFailed(
                text,
                stage=stage,
                kind=kind,
                traceback=trace,
                about=reply.about,
                builder=printable(reply.builder),
            )
        if not isinstance(reply, expected):
            raise ProtocolError(f"{type(reply).__name__} came where {expected.__name__} is due")
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
            if self._log.fileno() in ready:
                self._log.drain()
            if fd in ready:
                return
            if self._process.ended():
                self._check_last_words(fd, events)
                return
            if deadline.expired:
                raise TimeoutError

    @staticmethod
    def _check_last_words(fd: int, events: int) -> None:
        """Return if the process has sent something before it ended."""
        try:
            wait_ready(fd, events, Deadline(0))
        except TimeoutError:
            raise PeerClosed("the process has ended") from None


def _token() -> int:
    return randbelow(2**53)
