"""The messages that judge and candidate exchange: requests one way, replies the other.

Each is a strict, bounded record. Decoding checks types, sizes and field names, and builds nothing
but these records; free text from a candidate stays text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional, Union

import msgspec
from msgspec import Meta

from flashinfer_bench.errors import ProtocolError

MAX_REQUEST_BYTES = 64 * 2**20
"""Longest request; sources of a solution are part of one."""

MAX_REPLY_BYTES = 4 * 2**20
"""Longest reply; tensors are not part of it."""

MAX_VALUES = 256
"""Most inputs of a call, and most outputs."""

MAX_NOTES = 16
"""Most remarks of a timer in one reply."""

MAX_TEXT = 64 * 2**10
"""Longest free text of a reply, in characters."""

_MAX_BYTES = 2**48

Token = Annotated[int, Meta(ge=0, lt=2**53)]
Slot = Annotated[int, Meta(ge=0, lt=2**31)]
Name = Annotated[str, Meta(max_length=256)]
Path = Annotated[str, Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Extent = Annotated[int, Meta(ge=0, lt=_MAX_BYTES)]
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
Notes = Annotated[list[Name], Meta(max_length=MAX_NOTES)]


class Message(Record):
    """Base of requests and replies.

    Attributes
    ----------
    token : int
        Drawn at random for each request. The reply repeats it, so nothing sent ahead of
        a request counts as its answer.
    """

    token: Token


# ---------------------------------------------------------------------- what the judge asks for


class Confine(Message):
    """Give up for good what a solution does not need; before any code of it. Reply: `Confined`.

    Attributes
    ----------
    writable : list of str
        Folders that stay writable besides the process's own.
    hidden : list of str
        Folders that are empty for the process.
    """

    writable: Annotated[list[Path], Meta(max_length=256)]
    hidden: Annotated[list[Path], Meta(max_length=256)]


class Problem(Message):
    """Base of what concerns a solution of a definition.

    Attributes
    ----------
    definition, solution : str
        JSON of the format.
    """

    definition: str
    solution: str


class Load(Problem):
    """Build a solution. Reply: `Loaded`."""


class Compile(Problem):
    """Do the part of a build that other processes can use. Reply: `Compiled`.

    Nothing of the solution is run. `Load` may follow, for the same solution.
    """


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


class Attach(Message):
    """Map memory of the judge's, and keep what lies there as sets of inputs. Reply: `Done`.

    Two descriptors follow: of a page of shared memory for the words of `Fire`, and of the memory
    itself, the host's or a device's.

    Attributes
    ----------
    nbytes : int
        Size of the memory.
    values : list of Value
        The inputs of every set in the order of the definition; tensors as omitted.
    places : list of list of int
        For each set where each of its tensors begins, in bytes: inputs, then outputs.
    axes : dict
        Value of every variable axis.
    """

    nbytes: Extent
    values: Values
    places: Annotated[list[Annotated[list[Extent], Meta(max_length=2 * MAX_VALUES)]], Meta()]
    axes: Annotated[dict[Name, Extent], Meta(max_length=MAX_VALUES)]


class Fire(Message):
    """Make and time one call. Reply: `Fired`.

    Attributes
    ----------
    slot : int
        Which inputs.
    timer : str
        Name of the timing backend.
    go : int
        The call is made once this is in the page's first word; until then its second word repeats
        the first. Not asked for of inputs that were put.
    attached : bool
        Whether the inputs are those of `Attach`, whose sets are numbered on their own.
    cold : bool
        Empty the caches before.
    empty : bool
        Do everything but call the solution: what that takes, a call takes beyond its latency.
    into : bool
        Do it like a solution that is handed its outputs.
    rehearsals : int
        At so many words before `go` a short call is rehearsed, on what lies there from earlier.
    """

    slot: Slot
    timer: Name
    go: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    attached: bool = False
    cold: bool = False
    empty: bool = False
    into: bool = False
    rehearsals: Slot = 1


class FireRound(Message):
    """Make calls one after the other, which are released together. Reply: `RoundFired`.

    Attributes
    ----------
    slots : list of int
        Sets of `Attach`, one for each call.
    timer, go, empty, into
        As of `Fire`.
    gated : bool
        Enqueue all calls behind a gate on the device, which opens when `go` is in the page's first
        word; each takes as long as `timer` says. Otherwise they begin when the word is there, and
        each takes until the device has finished, by the clock of the host.
    ready : int
        The page's second word once everything is enqueued, or the process waits for `go`.
    touch : bool
        Read the inputs of each call just before it.
    """

    slots: Annotated[list[Slot], Meta(min_length=1, max_length=MAX_VALUES)]
    timer: Name
    go: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    ready: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    gated: bool = False
    touch: bool = False
    empty: bool = False
    into: bool = False


class Collect(Message):
    """Send the outputs of a call of the last `Fire` or `FireRound`. Reply: `Outputs`.

    Attributes
    ----------
    budget : int
        As of `Call`.
    call : int
        Which call of the round.
    """

    budget: Extent
    call: Slot = 0


# ------------------------------------------------ what a candidate answers; all of it untrusted


class Ready(Message):
    """The candidate has started and awaits its first request (token 0)."""


class Confined(Message):
    """What the process has given up.

    Attributes
    ----------
    applied : list of str
        Names of the measures that hold from now on.
    missing : dict of str to str
        Measures that this system does not offer, and why.
    """

    applied: Annotated[list[Name], Meta(max_length=64)]
    missing: Annotated[dict[Name, Text], Meta(max_length=64)]


class Done(Message):
    """It is done, and there is nothing to tell."""


class Loaded(Message):
    """The solution is built.

    Attributes
    ----------
    destination_passing_style : bool
        Whether the callable takes its outputs as arguments.
    """

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


class Place(Record):
    """Where in the candidate's memory the elements of a CPU tensor lie.

    Attributes
    ----------
    address : int
        Of the first byte that an element has.
    span : int
        Bytes from there to the end of the last element.
    strides : list of int
        Of each dimension, in elements.
    """

    address: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    span: Extent
    strides: Annotated[list[Extent], Meta(max_length=64)]


class Fired(Message):
    """The call has returned, and the device has finished.

    Attributes
    ----------
    timer_version : str
        Version of what took the latency.
    sample_ms : float
        The latency.
    values : list of Value
        What was returned: scalars as they are, tensors as omitted.
    places : list of Place or None
        For each value where it lies; None for scalars, and where it does not lie in plain memory.
    notes : list of str
        What a reader of the latency should know.
    """

    timer_version: Name
    sample_ms: Milliseconds
    values: Values
    places: Annotated[list[Optional[Place]], Meta(max_length=MAX_VALUES)]
    notes: Notes = msgspec.field(default_factory=list)


class RoundFired(Message):
    """The calls have returned, and the device has finished.

    Attributes
    ----------
    timer_version : str
        As of `Fired`.
    samples_ms : list of float
        The latency of each call.
    values : list of list of Value
        What each has returned, as of `Fired`.
    gate : bool
        Whether this process has a gate.
    notes : list of str
        As of `Fired`.
    """

    timer_version: Name
    samples_ms: Annotated[list[Milliseconds], Meta(max_length=MAX_VALUES)]
    values: Annotated[list[Values], Meta(max_length=MAX_VALUES)]
    gate: bool = True
    notes: Notes = msgspec.field(default_factory=list)


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


Request = Union[Confine, Load, Compile, PutInputs, Call, Attach, Fire, FireRound, Collect]
Reply = Union[Ready, Confined, Done, Loaded, Compiled, Outputs, Fired, RoundFired, Failed]


class Codec:
    """Bytes to messages of one direction, and any message to bytes.

    Parameters
    ----------
    accepted : type
        Union of the messages that may come in.
    limit : int
        Most bytes that one of them may have.
    """

    def __init__(self, accepted: Any, limit: int) -> None:
        self._decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(accepted, strict=True)
        self.limit = limit

    def decode(self, data: bytes | bytearray) -> Message:
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


REQUESTS = Codec(Request, MAX_REQUEST_BYTES)
REPLIES = Codec(Reply, MAX_REPLY_BYTES)


def clip(text: str, limit: int) -> str:
    """Return `text` with at most `limit` characters, the middle left out, fit for UTF-8.

    Parameters
    ----------
    text : str
        Any text, lone surrogates included.
    limit : int
        Most characters of the result; at least 64.
    """
    if len(text) > limit:
        note = f"\n… {len(text) - limit} characters left out …\n"
        keep = limit - len(note)
        text = text[: keep - keep // 2] + note + text[len(text) - keep // 2 :]
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean[:limit]
