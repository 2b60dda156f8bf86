"""The messages that judge and candidate exchange: requests one way, replies the other.

Each is a strict, bounded record. Decoding checks types, sizes and field names, and builds nothing
but these records; free text from a candidate stays text.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar, Union

import msgspec
from msgspec import Meta

from flashinfer_bench.errors import ProtocolError

MAX_REQUEST_BYTES = 64 * 2**20
"""Longest request; sources of a solution are part of one."""

MAX_REPLY_BYTES = 4 * 2**20
"""Longest reply; tensors are not part of it."""

MAX_VALUES = 256
"""Most inputs of a call, and most outputs."""

MAX_SAMPLES = 100_000
"""Most timed calls in one request."""

MAX_TEXT = 64 * 2**10
"""Longest free text of a reply, in characters."""

_MAX_BYTES = 2**48

Token = Annotated[int, Meta(ge=0, lt=2**53)]
Slot = Annotated[int, Meta(ge=0, lt=2**31)]
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Extent = Annotated[int, Meta(ge=0, lt=_MAX_BYTES)]
Count = Annotated[int, Meta(ge=0, le=MAX_SAMPLES)]
Milliseconds = Annotated[float, Meta(ge=0, lt=1e12)]


class Record(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag=True):
    """Base of everything that is sent, tagged by its class's name."""


class TensorValue(Record):
    """A tensor; its bytes follow the message as a blob.

    Attributes
    ----------
    dtype : str
        Name of the element type without ``torch.``.
    shape : list of int
        Extents.
    nbytes : int
        Size of the blob.
    omitted : bool
        No blob follows, because it would have exceeded what the request allowed.
    """

    dtype: Name
    shape: Annotated[list[Extent], Meta(max_length=64)]
    nbytes: Extent
    omitted: bool = False


class BoolValue(Record):
    """A Python bool."""

    value: bool


class IntValue(Record):
    """A Python int that fits into 64 bits."""

    value: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class FloatValue(Record):
    """A Python float as `float.hex` writes it: exact, and infinities and NaN included."""

    text: Annotated[str, Meta(max_length=32)]


Value = Union[TensorValue, BoolValue, IntValue, FloatValue]
Values = Annotated[list[Value], Meta(max_length=MAX_VALUES)]


class Message(Record):
    """Base of requests and replies.

    Attributes
    ----------
    token : int
        Drawn at random for each request. The reply repeats it, so nothing sent ahead of
        a request counts as its answer.
    """

    token: Token


class Load(Message):
    """Build a solution. Reply: `Loaded`.

    Attributes
    ----------
    definition, solution : str
        JSON of the format.
    """

    definition: str
    solution: str


class Compile(Message):
    """Do the part of a build that other processes can use. Reply: `Compiled`.

    Nothing of the solution is run. `Load` may follow, for the same solution.

    Attributes
    ----------
    definition, solution : str
        JSON of the format.
    """

    definition: str
    solution: str


class PutInputs(Message):
    """Keep a set of inputs. The blobs of its tensors follow. Reply: `Done`.

    Attributes
    ----------
    slot : int
        Number of the set; an old set of that number is dropped.
    values : list of Value
        In the order of the definition's inputs.
    axes : dict
        Value of every variable axis.
    """

    slot: Slot
    values: Values
    axes: Annotated[dict[Name, Extent], Meta(max_length=MAX_VALUES)]


class Call(Message):
    """Call the solution once. Reply: `Outputs`.

    Attributes
    ----------
    slot : int
        Which inputs.
    budget : int
        Most bytes that all outputs together may have; tensors beyond it are announced as omitted.
    """

    slot: Slot
    budget: Extent


class Time(Message):
    """Time calls of the solution. Reply: `Timed`.

    Attributes
    ----------
    slots : list of int
        The inputs, taken in turn.
    timer : str
        Name of the timing backend.
    warmup, iterations : int
        Untimed and timed calls.
    """

    slots: Annotated[list[Slot], Meta(min_length=1, max_length=4096)]
    timer: Name
    warmup: Count
    iterations: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]


class Ready(Message):
    """The candidate has started and awaits its first request (token 0)."""


class Done(Message):
    """It is done, and there is nothing to tell."""


class Loaded(Message):
    """The solution is built.

    Attributes
    ----------
    build_type : str
        Kind of build.
    destination_passing_style : bool
        Whether the callable takes its outputs as arguments.
    """

    build_type: Name
    destination_passing_style: bool


class Compiled(Message):
    """What other processes can use of the build is on disk.

    Attributes
    ----------
    builder : str
        Name of the builder.
    fresh : bool
        Whether it was not there before.
    """

    builder: Name
    fresh: bool


class Outputs(Message):
    """What the solution returned. The blobs of its tensors follow, the omitted ones excepted.

    Attributes
    ----------
    values : list of Value
        In the order of the definition's outputs; as many as there were.
    """

    values: Values


class Timed(Message):
    """Latencies.

    Attributes
    ----------
    timer, timer_version : str
        What took them.
    samples_ms : list of float
        One per timed call, in order.
    notes : list of str
        What a reader of the numbers should know.
    """

    timer: Name
    timer_version: Name
    samples_ms: Annotated[list[Milliseconds], Meta(max_length=MAX_SAMPLES)]
    notes: Annotated[list[Name], Meta(max_length=16)] = []


FailureClass = Literal["raised", "build", "capability", "storage"]
"""What a failure is about: code that ``raised``, a ``build`` that did not go through, or what this
machine lacks: a ``capability``, such as a compiler, or ``storage``, such as room on the disk."""


class Failed(Message):
    """The solution, or the candidate on its behalf, raised.

    Attributes
    ----------
    kind : str
        Name of the exception's class.
    message, traceback : str
        Its text; cut if long.
    fatal : bool
        The process is of no further use, such as after an illegal memory access on a GPU.
    about : str
        What the failure is about; see `FailureClass`.
    builder : str
        The builder that was at work; empty if that is not known.
    """

    kind: Name
    message: Text
    traceback: Text
    fatal: bool = False
    about: FailureClass = "raised"
    builder: Name = ""


Request = Union[Load, Compile, PutInputs, Call, Time]
Reply = Union[Ready, Done, Loaded, Compiled, Outputs, Timed, Failed]

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
            raise ProtocolError(f"a message that is not allowed: {error}") from error


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
