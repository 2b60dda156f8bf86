"""The messages that judge and candidate exchange: requests one way, replies the other.

Each is a strict, bounded record. Decoding checks types, sizes and field names, and builds nothing
but these records; free text from a candidate stays text.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, Union

import msgspec

from flashinfer_bench.bench.transport.fields import (
    MAX_NOTES,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TEXT,
    MAX_VALUES,
    BoolValue,
    FloatValue,
    IntValue,
    Message,
    Record,
    TensorValue,
    Value,
)
from flashinfer_bench.bench.transport.replies import (
    Compiled,
    Confined,
    Done,
    Failed,
    FailureClass,
    Fired,
    Loaded,
    Outputs,
    Place,
    Ready,
)
from flashinfer_bench.bench.transport.requests import (
    Attach,
    Call,
    Collect,
    Compile,
    Confine,
    Fire,
    Load,
    PutInputs,
)
from flashinfer_bench.errors import ProtocolError

__all__ = [
    "MAX_NOTES",
    "MAX_REPLY_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_TEXT",
    "MAX_VALUES",
    "REPLIES",
    "REQUESTS",
    "Attach",
    "BoolValue",
    "Call",
    "Codec",
    "Collect",
    "Compile",
    "Compiled",
    "Confine",
    "Confined",
    "Done",
    "Failed",
    "FailureClass",
    "Fire",
    "Fired",
    "FloatValue",
    "IntValue",
    "Load",
    "Loaded",
    "Message",
    "MessageT",
    "Outputs",
    "Place",
    "PutInputs",
    "Ready",
    "Record",
    "Reply",
    "Request",
    "TensorValue",
    "Value",
    "encode",
]

Request = Union[Confine, Load, Compile, PutInputs, Call, Attach, Fire, Collect]
Reply = Union[Ready, Confined, Done, Loaded, Compiled, Outputs, Fired, Failed]

MessageT = TypeVar("MessageT", bound=Message)


class Codec(Generic[MessageT]):
    """Bytes to messages of one direction, and any message to bytes.

    Parameters
    ----------
    accepted : type
        Union of the messages that may come in.
    limit : int
        Most bytes that one of them may have.
    """

    def __init__(self, accepted: Any, limit: int) -> None:
        self._decoder: msgspec.json.Decoder[MessageT] = msgspec.json.Decoder(accepted, strict=True)
        self.limit = limit

    def decode(self, data: bytes | bytearray) -> MessageT:
        """Return the message in `data`.

        Raises
        ------
        ProtocolError
            If `data` is none of the accepted messages.
        """
        try:
            return self._decoder.decode(data)
        # A text that nests deeply, or is not UTF-8, is refused with other exceptions.
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"an invalid message: {error}") from error


def encode(message: Message) -> bytes:
    """Return `message` as bytes.

    Raises
    ------
    ValueError
        If a text cannot be written as UTF-8.
    """
    return msgspec.json.encode(message)


REQUESTS: Codec[Message] = Codec(Request, MAX_REQUEST_BYTES)
REPLIES: Codec[Message] = Codec(Reply, MAX_REPLY_BYTES)
