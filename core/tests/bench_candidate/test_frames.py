from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import (
    HEADER,
    MAGIC,
    FrameStream,
    PeerClosed,
    TruncatedFrame,
)
from flashinfer_bench.errors import ProtocolError

SOON = 5.0
LIMIT = 1000


def frame(kind: bytes, payload: bytes, *, length: int | None = None, magic: bytes = MAGIC) -> bytes:
    return HEADER.pack(magic, kind, len(payload) if length is None else length) + payload


@contextlib.contextmanager
def fed(data: bytes):
    """A stream at whose other end `data` was written, and the connection closed."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(data)
        theirs.close()
        yield FrameStream(ours)


def receive(data: bytes, limit: int = LIMIT) -> bytes:
    with fed(data) as stream:
        return bytes(stream.receive(limit=limit, deadline=Deadline(SOON)))


class TestRefused:
    @pytest.mark.parametrize("length", [LIMIT + 1, 2**31, 2**63, 2**64 - 1])
    def test_a_message_that_is_too_long_before_memory_is_allocated(self, length):
        with pytest.raises(ProtocolError, match=f"{length} bytes was announced"):
            receive(frame(b"C", b"x", length=length))

    @pytest.mark.parametrize("length", [0, 3, 5, 2**64 - 1])
    def test_a_blob_of_another_size_than_announced(self, length):
        with (
            fed(frame(b"B", b"1234", length=length)) as stream,
            pytest.raises(ProtocolError, match="4 were announced"),
        ):
            stream.receive_into(memoryview(bytearray(4)), Deadline(SOON))

    @given(st.data())
    def test_a_frame_that_ends_early(self, data):
        whole = frame(b"C", data.draw(st.binary(min_size=1, max_size=50)))
        cut = data.draw(st.integers(1, len(whole) - 1))
        with pytest.raises(TruncatedFrame):
            receive(whole[:cut])

    @given(st.binary(max_size=200))
    def test_random_bytes_are_a_frame_or_an_error(self, data):
        with contextlib.suppress(ProtocolError, PeerClosed):
            payload = receive(data)
            assert data.startswith(frame(b"C", payload))


class TestHeardAt:
    """When a message was there, which is before it has been read."""

    @pytest.mark.parametrize("spins_s", [0.0, 30.0])
    def test_one_that_comes_while_this_process_is_kept_from_running(self, sockets, spins_s):
        """Kept after it has read the clock, and before it looks: it must not seem there before."""
        left, right = sockets
        stream, sent = FrameStream(right), []

        def clock():
            now = time.perf_counter()
            if not sent:
                time.sleep(0.02)
                sent.append(time.perf_counter())
                left.sendall(frame(b"C", b"x"))
            return now

        stream._clock, stream.spins_until = clock, time.perf_counter() + spins_s
        assert stream.receive(limit=LIMIT, deadline=Deadline(5)) == b"x"
        assert sent[0] <= stream.heard_at

    @pytest.mark.parametrize("chunk", [1, 1000, 100_000])
    def test_what_comes_as_fast_as_it_is_read_is_not_there_before(self, sockets, chunk):
        """Else a flood of spaces would stop the clock at its beginning."""
        left, right = sockets
        data, sent = frame(b"C", b" " * (3000 if chunk == 1 else 4_000_000)), []

        def send():
            for begin in range(0, len(data), chunk):
                sent.append(time.perf_counter())
                left.sendall(data[begin : begin + chunk])

        thread = threading.Thread(target=send)
        thread.start()
        stream = FrameStream(right)
        stream.receive(limit=2**22, deadline=Deadline(30))
        thread.join()
        assert sent[-1] <= stream.heard_at


class TestDeadlines:
    def test_a_peer_that_drips(self, sockets):
        """Each byte comes in time, the whole frame does not."""
        done = threading.Event()

        def drip():
            with contextlib.suppress(OSError):
                for byte in frame(b"C", bytes(LIMIT)):
                    sockets[1].send(bytes([byte]))
                    if done.wait(0.005):
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(TimeoutError):
                FrameStream(sockets[0]).receive(limit=LIMIT, deadline=Deadline(0.1))
        finally:
            done.set()
            thread.join()
