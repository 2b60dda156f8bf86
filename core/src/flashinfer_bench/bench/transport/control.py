"""What passes between an executor and its fork server: trusted code on both sides.

All sockets are of the type that keeps packets apart, so each packet is one message.

*Control socket*, one per server. The server sends `ServerReady` once; the executor sends `SPAWN`
for each candidate, with three descriptors: the candidate's end of its channel, the writing end of
its log pipe, and the server's end of a **leash**. When the control socket closes, the server kills
everything and ends.

*Leash*, one per candidate. The server sends `Started` or `Refused`, and when the process has ended,
and whatever it left behind has been killed, `Exited`. The executor sends `KILL` to have the
candidate's process group killed; closing the leash means the same.
"""

from __future__ import annotations

from typing import Any, TypeVar, Union

import msgspec

from flashinfer_bench.bench.transport.messages import Record
from flashinfer_bench.errors import ProtocolError, RunnerError

MAX_PACKET_BYTES = 64 * 2**10
KILL = b"kill"
SPAWN = b"spawn"
SPAWN_DESCRIPTORS = 3


class ServerReady(Record):
    """The fork server has imported everything."""


class Started(Record):
    """It runs."""

    pid: int


class Refused(Record):
    """It could not be started."""

    reason: str


class Exited(Record):
    """It has ended; negative codes are signals."""

    code: int


Packet = Union[ServerReady, Started, Refused, Exited]
PacketT = TypeVar("PacketT", bound=Record)

_DECODER: msgspec.json.Decoder[Packet] = msgspec.json.Decoder(Packet)


def pack(packet: Any) -> bytes:
    """Return `packet` as bytes."""
    return msgspec.json.encode(packet)


def unpack(data: bytes, expected: type[PacketT]) -> PacketT:
    """Return the packet in `data`.

    Parameters
    ----------
    data : bytes
        As received.
    expected : type
        What it has to be.

    Raises
    ------
    RunnerError
        If the server refuses instead.
    ProtocolError
        If it is anything else.
    """
    try:
        packet = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"an invalid packet: {error}") from error
    if isinstance(packet, Refused):
        raise RunnerError(packet.reason)
    if not isinstance(packet, expected):
        kind = type(packet).__name__
        raise ProtocolError(f"got {kind} instead of {expected.__name__}")
    return packet
