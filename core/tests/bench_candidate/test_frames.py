import contextlib
import os
import socket
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import (
    HEADER,
    MAGIC,
    FrameKind,
    FrameStream,
    PeerClosed,
    TruncatedFrame,
)
from flashinfer_bench.errors import ProtocolError

SOON = 5.0
LIMIT = 1000


def frame(kind, payload, *, length=None, magic=MAGIC):
    return HEADER.pack(magic, kind, len(payload) if length is None else length) + payload


@contextlib.contextmanager
def fed(data):
    """A stream at whose other end `data` was written, and the connection closed."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(data)
        theirs.close()
        yield FrameStream(ours)


def receive(data, limit=LIMIT):
    with fed(data) as stream:
        return bytes(stream.receive_frame(limit=limit, deadline=Deadline(SOON)))


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


class TestDescriptors:
    """Open files between frames."""

    @given(st.lists(st.binary(max_size=50) | st.lists(st.integers(0, 3), min_size=1, max_size=5)))
    def test_come_as_they_were_sent_and_disturb_no_frame(self, parts):
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()).fileno() for _ in range(4)]
            ends = map(stack.enter_context, socket.socketpair())
            ours, theirs = map(FrameStream, ends)
            for part in parts:
                if isinstance(part, bytes):
                    ours.send_frame(FrameKind.CONTROL, part, Deadline(SOON))
                else:
                    ours.send_descriptors([files[number] for number in part], Deadline(SOON))
            for part in parts:
                if isinstance(part, bytes):
                    assert theirs.receive_frame(limit=LIMIT, deadline=Deadline(SOON)) == part
                    continue
                found = theirs.receive_descriptors(len(part), Deadline(SOON))
                for number, descriptor in zip(part, found, strict=True):
                    assert os.path.sameopenfile(descriptor, files[number])
                    assert not os.get_inheritable(descriptor)
                    os.close(descriptor)

    @pytest.mark.parametrize(("sent", "due"), [(1, 2), (3, 2), (40, 2), (2, 40), (0, 1)])
    def test_another_number_than_is_due(self, sockets, pipe, descriptors, sent, due):
        before, (ours, theirs) = descriptors(), map(FrameStream, sockets)
        if sent:
            ours.send_descriptors([pipe[0]] * sent, Deadline(SOON))
        else:
            ours.send_frame(FrameKind.CONTROL, b"x", Deadline(SOON))
        with pytest.raises(ProtocolError, match=f"open files where {due} were expected"):
            theirs.receive_descriptors(due, Deadline(SOON))
        assert descriptors() == before

    def test_nothing_comes(self, sockets):
        with pytest.raises(TimeoutError):
            FrameStream(sockets[0]).receive_descriptors(1, Deadline(0.02))
        with fed(b"") as stream, pytest.raises(PeerClosed):
            stream.receive_descriptors(1, Deadline(SOON))


def test_a_peer_that_drips(sockets):
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
            FrameStream(sockets[0]).receive_frame(limit=LIMIT, deadline=Deadline(0.1))
    finally:
        done.set()
        thread.join()
