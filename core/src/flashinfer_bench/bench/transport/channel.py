"""Typed messages and tensors over one connection; the same class for both ends."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.transport.frames import FrameKind, FrameStream, Waiter, wait_ready
from flashinfer_bench.bench.transport.messages import (
    REPLIES,
    REQUESTS,
    Codec,
    Message,
    TensorValue,
    Value,
    encode,
)
from flashinfer_bench.bench.transport.values import buffer_of, rebuild
from flashinfer_bench.errors import ProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from flashinfer_bench.bench.transport.deadline import Deadline


class Channel(FrameStream):
    """One end of a conversation; used by one thread at a time.

    Parameters
    ----------
    sock : socket.socket
        A connected stream socket, which the channel owns from now on.
    incoming : Codec
        The messages that the other side may send.
    wait : callable, optional
        How to wait for the socket.
    """

    def __init__(self, sock: socket.socket, incoming: Codec, *, wait: Waiter = wait_ready) -> None:
        super().__init__(sock, wait=wait)
        self._incoming = incoming

    def send(
        self, message: Message, deadline: Deadline, blobs: Sequence[Optional[memoryview]] = ()
    ) -> None:
        """Send `message`, then `blobs` (None for a value that has none).

        Raises
        ------
        PeerClosed
            If nobody is left to read it.
        TimeoutError
            At the deadline.
        """
        self.send_frame(FrameKind.CONTROL, encode(message), deadline)
        for blob in blobs:
            if blob is not None:
                self.send_frame(FrameKind.BLOB, blob, deadline)

    def receive(self, deadline: Deadline) -> Message:
        """Receive one message.

        Raises
        ------
        ProtocolError
            If anything else comes.
        PeerClosed
            If the connection ended.
        TimeoutError
            At the deadline.
        """
        payload = self.receive_frame(limit=self._incoming.limit, deadline=deadline)
        return self._incoming.decode(payload)

    def is_readable(self) -> bool:
        """Return whether something has come, or the connection has ended."""
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    def receive_values(
        self, records: Sequence[Value], deadline: Deadline, *, budget: Optional[int] = None
    ) -> list[Any]:
        """Receive the blobs that the last message announced, and return its values.

        Parameters
        ----------
        records : sequence of Value
            As they stood in the message.
        deadline : Deadline
            When to give up.
        budget : int, optional
            Most bytes that all blobs together may have; checked before memory is allocated.
            Default: no limit.

        Returns
        -------
        list
            CPU tensors and Python scalars.

        Raises
        ------
        ProtocolError
            If more is announced than allowed, or something else comes.
        PeerClosed
            If the connection ended.
        TimeoutError
            At the deadline.
        """
        announced = sum(_blob_size(record) or 0 for record in records)
        if budget is not None and announced > budget:
            raise ProtocolError(
                f"{announced} bytes of tensors were announced; {budget} are allowed"
            )
        values = []
        for record in records:
            data = None
            nbytes = _blob_size(record)
            if nbytes is not None:
                data = buffer_of(nbytes)
                self.receive_into(data, deadline)
            values.append(rebuild(record, data))
        return values


def _blob_size(record: Value) -> Optional[int]:
    """Bytes of the blob that belongs to `record`; None if there is none."""
    if isinstance(record, TensorValue) and not record.omitted:
        return record.nbytes
    return None


def judge_end(sock: socket.socket, *, wait: Waiter = wait_ready) -> Channel:
    """Return the end that sends requests and receives replies."""
    return Channel(sock, REPLIES, wait=wait)


def candidate_end(sock: socket.socket) -> Channel:
    """Return the end that receives requests and sends replies."""
    return Channel(sock, REQUESTS)
