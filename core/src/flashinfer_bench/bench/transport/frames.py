"""Frames: bytes with a kind and a length, over a connected stream socket.

A frame is a header of 12 bytes and a payload::

    offset  size  meaning
    0       3     the letters FIB
    3       1     kind: C control (a message), B blob (the bytes of one tensor)
    4       8     length of the payload in bytes, unsigned, little endian
    12      …     payload

The receiver always knows which kind comes next and how long it may be. It refuses everything else
with `ProtocolError` before it allocates memory for it. No call here blocks past its deadline,
however slowly the other side sends or reads.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from flashinfer_bench.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.transport.deadline import Deadline

MAGIC = b"FIB"
HEADER = struct.Struct("<3scQ")

ResultT = TypeVar("ResultT")


class FrameKind(Enum):
    """What a frame holds."""

    CONTROL = b"C"
    BLOB = b"B"


class PeerClosed(ConnectionError):
    """The other side has closed the connection, between two frames."""


class TruncatedFrame(ProtocolError):
    """The other side has closed the connection inside a frame."""


Waiter = Callable[[int, int, "Deadline"], None]
"""``wait(fd, events, deadline)`` returns when `fd` is ready for the poll `events`, raises
TimeoutError at the deadline, and may raise `PeerClosed` when it learns that nobody is left."""


def wait_ready(fd: int, events: int, deadline: Deadline) -> None:
    """Wait until `fd` is ready; the plain `Waiter`.

    Parameters
    ----------
    fd : int
        The descriptor to watch.
    events : int
        ``select.POLLIN`` or ``select.POLLOUT``.
    deadline : Deadline
        When to give up.

    Raises
    ------
    TimeoutError
        At the deadline.
    """
    poller = select.poll()
    poller.register(fd, events)
    while not poller.poll(deadline.poll_ms()):
        if deadline.expired:
            raise TimeoutError("the other side did not answer in time")


def flat(buffer: bytes | bytearray | memoryview) -> memoryview:
    """Return `buffer` as a one-dimensional view of bytes; empty ones too."""
    view = memoryview(buffer)
    # An empty view of several dimensions cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def header_of(kind: FrameKind, nbytes: int) -> bytes:
    """Return the header of a frame with a payload of so many bytes."""
    return HEADER.pack(MAGIC, kind.value, nbytes)


def _check(deadline: Deadline) -> None:
    """Raise at the deadline; a peer that drips bytes keeps the socket ready for ever."""
    if deadline.expired:
        raise TimeoutError("the other side was too slow")


class FrameStream:
    """Sends and receives frames; made non-blocking, used by one thread at a time.

    Parameters
    ----------
    sock : socket.socket
        A connected stream socket, which the stream owns from now on.
    wait : callable, optional
        How to wait for the socket; see `Waiter`.
    """

    def __init__(self, sock: socket.socket, *, wait: Waiter = wait_ready) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._wait = wait

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 once closed."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._sock.close()

    def send_frame(self, kind: FrameKind, payload: bytes | memoryview, deadline: Deadline) -> None:
        """Send one frame.

        Parameters
        ----------
        kind : FrameKind
            What it holds.
        payload : bytes or memoryview
            A contiguous buffer; it is not copied.
        deadline : Deadline
            When to give up; the stream is unusable after that.

        Raises
        ------
        PeerClosed
            If nobody is left to read it.
        TimeoutError
            At the deadline.
        """
        body = flat(payload)
        parts = [part for part in (memoryview(header_of(kind, body.nbytes)), body) if part.nbytes]
        while parts:
            send = partial(self._sock.sendmsg, parts)
            sent = self._when_ready(send, select.POLLOUT, deadline)
            while parts and sent >= parts[0].nbytes:
                sent -= parts.pop(0).nbytes
            if parts:
                parts[0] = parts[0][sent:]
                _check(deadline)

    def receive_frame(self, *, limit: int, deadline: Deadline) -> bytearray:
        """Receive the payload of one control frame.

        Parameters
        ----------
        limit : int
            Most bytes that it may have.
        deadline : Deadline
            When to give up.

        Raises
        ------
        ProtocolError
            If anything but a control frame of an allowed size comes.
        PeerClosed
            If the connection ended between two frames.
        TimeoutError
            At the deadline.
        """
        length = self._receive_header(FrameKind.CONTROL, deadline)
        if length > limit:
            raise ProtocolError(f"a message of {length} bytes was announced; {limit} are allowed")
        payload = bytearray(length)
        self._fill(memoryview(payload), deadline)
        return payload

    def receive_into(self, buffer: memoryview, deadline: Deadline) -> None:
        """Receive one blob frame straight into `buffer`.

        Parameters
        ----------
        buffer : memoryview
            Contiguous and writable; the blob must have exactly its size.
        deadline : Deadline
            When to give up.

        Raises
        ------
        ProtocolError
            If anything but a blob frame of that size comes.
        PeerClosed
            If the connection ended between two frames.
        TimeoutError
            At the deadline.
        """
        view = flat(buffer)
        length = self._receive_header(FrameKind.BLOB, deadline)
        if length != view.nbytes:
            raise ProtocolError(f"got a blob of {length} bytes where {view.nbytes} were announced")
        self._fill(view, deadline)

    def _receive_header(self, expected: FrameKind, deadline: Deadline) -> int:
        header = bytearray(HEADER.size)
        self._fill(memoryview(header), deadline, at_boundary=True)
        magic, kind, length = HEADER.unpack(header)
        if magic != MAGIC:
            raise ProtocolError(f"not a frame: {bytes(header)!r}")
        if kind != expected.value:
            raise ProtocolError(f"got a frame of kind {kind!r} instead of {expected.value!r}")
        return int(length)

    def _fill(self, view: memoryview, deadline: Deadline, *, at_boundary: bool = False) -> None:
        filled = 0
        while filled < view.nbytes:
            receive = partial(self._sock.recv_into, view[filled:])
            count = self._when_ready(receive, select.POLLIN, deadline)
            if count == 0:
                if at_boundary and filled == 0:
                    raise PeerClosed("the other side closed the connection")
                raise TruncatedFrame("the connection ended inside a frame")
            filled += count
            if filled < view.nbytes:
                _check(deadline)

    def send_descriptors(self, descriptors: Sequence[int], deadline: Deadline) -> None:
        """Send open files after the message that announces them; as `send_frame`."""
        send = partial(socket.send_fds, self._sock, [b"D"], descriptors)
        self._when_ready(send, select.POLLOUT, deadline)

    def receive_descriptors(self, count: int, deadline: Deadline) -> list[int]:
        """Receive the open files that were announced, which the caller closes; as `receive_frame`.

        Raises
        ------
        ProtocolError
            If there are not exactly so many.
        """
        receive = partial(socket.recv_fds, self._sock, 1, count)
        data, found, flags, _ = self._when_ready(receive, select.POLLIN, deadline)
        if not data:
            raise PeerClosed("the other side closed the connection")
        if len(found) != count or flags & socket.MSG_CTRUNC:
            for descriptor in found:
                os.close(descriptor)
            more = " and more" if flags & socket.MSG_CTRUNC else ""
            raise ProtocolError(f"got {len(found)}{more} open files where {count} were expected")
        for descriptor in found:
            os.set_inheritable(descriptor, False)
        return list(found)

    def _when_ready(self, step: Callable[[], ResultT], events: int, deadline: Deadline) -> ResultT:
        while True:
            try:
                return step()
            except BlockingIOError:
                self._wait(self._sock.fileno(), events, deadline)
            except OSError as error:
                raise PeerClosed(f"the connection broke: {error.strerror}") from error
