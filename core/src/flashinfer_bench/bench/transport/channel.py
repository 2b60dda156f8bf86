"""Typed messages and tensors over one connection; the same class for both ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, Optional

from flashinfer_bench.bench.transport.frames import (
    FrameKind,
    FrameStream,
    Waiter,
    flat,
    header_of,
    wait_ready,
)
from flashinfer_bench.bench.transport.messages import (
    REPLIES,
    REQUESTS,
    Codec,
    Message,
    MessageT,
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


class Channel(Generic[MessageT]):
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

    def __init__(
        self, sock: socket.socket, incoming: Codec[MessageT], *, wait: Waiter = wait_ready
    ) -> None:
        self._stream = FrameStream(sock, wait=wait)
        self._incoming = incoming

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 once closed."""
        return self._stream.fileno()

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._stream.close()

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
        self._stream.send(FrameKind.CONTROL, encode(message), deadline)
        for blob in blobs:
            if blob is not None:
                self._stream.send(FrameKind.BLOB, blob, deadline)

    def receive(self, deadline: Deadline) -> MessageT:
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
        return self.decode(self.receive_undecoded(deadline))

    def send_packed(self, packed: bytes, deadline: Deadline) -> None:
        """Send what `pack` returned, in as few steps as possible; as `send`."""
        self._stream.send_raw([memoryview(packed)], deadline)

    def receive_undecoded(self, deadline: Deadline) -> bytearray:
        """Receive the bytes of one message, without a look at them; as `receive`."""
        return self._stream.receive(limit=self._incoming.limit, deadline=deadline)

    def spin(self, seconds: float) -> None:
        """Look for messages without pause for so long: `heard_at` is exact then, for a core."""
        self._stream.spins_until = time.perf_counter() + seconds

    @property
    def heard_at(self) -> float:
        """When the last message was there, on the clock of `time.perf_counter`.

        One that comes in pieces is there with the last of them. The rest of a short one that comes
        within the microseconds after its header is taken to have come with it.
        """
        return self._stream.heard_at

    def decode(self, payload: bytearray) -> MessageT:
        """Return the message that `receive_undecoded` returned.

        Raises
        ------
        ProtocolError
            If it is none that is allowed.
        """
        return self._incoming.decode(payload)

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
                self._stream.receive_into(data, deadline)
            values.append(rebuild(record, data))
        return values


def _blob_size(record: Value) -> Optional[int]:
    """Bytes of the blob that belongs to `record`; None if there is none."""
    if isinstance(record, TensorValue) and not record.omitted:
        return record.nbytes
    return None


def pack(message: Message, blobs: Sequence[Optional[memoryview]] = ()) -> bytes:
    """Return `message` and `blobs` as the bytes that go over a connection; for short blobs.

    Raises
    ------
    ValueError
        If a text cannot be written as UTF-8.
    """
    payloads = [(FrameKind.CONTROL, memoryview(encode(message)))]
    payloads += [(FrameKind.BLOB, flat(blob)) for blob in blobs if blob is not None]
    return b"".join(
        part for kind, data in payloads for part in (header_of(kind, data.nbytes), data)
    )


def judge_end(sock: socket.socket, *, wait: Waiter = wait_ready) -> Channel[Message]:
    """Return the end that sends requests and receives replies."""
    return Channel(sock, REPLIES, wait=wait)


def candidate_end(sock: socket.socket) -> Channel[Message]:
    """Return the end that receives requests and sends replies."""
    return Channel(sock, REQUESTS)
