"""One side of a conversation with a candidate process: requests, deadlines, log, and its end."""

from __future__ import annotations

import select
import threading
from contextlib import contextmanager
from secrets import randbelow
from typing import TYPE_CHECKING, NoReturn, Optional, TypeVar

from flashinfer_bench.bench.executors.base import (
    Candidate,
    CandidateCrashed,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
    Stage,
)
from flashinfer_bench.bench.executors.handle import describe_exit
from flashinfer_bench.bench.executors.log import LogPipe, printable
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.channel import judge_end
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import PeerClosed, TruncatedFrame, wait_ready
from flashinfer_bench.errors import ProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from flashinfer_bench.bench.executors.frozen import FrozenTree
    from flashinfer_bench.bench.executors.handle import ProcessHandle

ReplyT = TypeVar("ReplyT", bound=wire.Message)

# How long a process may take to end after its connection has, before it is taken to be alive.
_END_GRACE_S = 2.0
# … after it has been killed. Tearing down a device context can take a while.
_KILL_TIMEOUT_S = 10.0


class Conversation(Candidate):
    """What every request to a candidate at the other end of a channel needs.

    Requests come from one thread at a time; `close` may be called from any.

    Parameters
    ----------
    process : ProcessHandle
        The running process.
    sock : socket.socket
        The judge's end of the channel.
    log_fd : int
        The reading end of its log pipe.
    device : str
        What it works on.
    on_close : callable, optional
        Called with the candidate once it is closed.
    """

    def __init__(
        self,
        process: ProcessHandle,
        sock: socket.socket,
        log_fd: int,
        *,
        device: str,
        on_close: Optional[Callable[[Conversation], None]] = None,
    ) -> None:
        self.pid = process.pid
        self._device = device
        self._process = process
        self._log = LogPipe(log_fd)
        self._channel = judge_end(sock, wait=self._wait)
        self._on_close = on_close
        self._lock = threading.RLock()
        self._usable = True
        self._closed = False
        # The process tree, if it has been stopped until the next request.
        self._frozen: Optional[FrozenTree] = None

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
        self._thaw()

    def _thaw(self) -> None:
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            frozen.thaw()

    @contextmanager
    def _exchange(self, stage: Stage, timeout_s: float) -> Iterator[Deadline]:
        """Hold the conversation for one request; what goes wrong becomes a `CandidateError`."""
        with self._lock:
            if not self.alive:
                raise self._crash(stage)
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
            what = "cannot be used after an earlier failure"
        else:
            what = describe_exit(code)
        return CandidateCrashed(f"the worker {what}", stage=stage, exit_code=code)

    def _ask(
        self,
        stage: Stage,
        request: wire.Message,
        expected: type[ReplyT],
        deadline: Deadline,
        blobs: Sequence[Optional[memoryview]] = (),
    ) -> ReplyT:
        self._channel.send(request, deadline, blobs)
        return self._expect(stage, request, expected, self._channel.receive(deadline))

    def _expect(
        self, stage: Stage, request: wire.Message, expected: type[ReplyT], reply: wire.Message
    ) -> ReplyT:
        if reply.token != request.token:
            raise ProtocolError("it answered another request")
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


def new_token() -> int:
    """Return a number by which the answer to a request is known."""
    return randbelow(2**53)
