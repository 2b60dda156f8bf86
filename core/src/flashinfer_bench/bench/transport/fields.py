"""What messages are made of: bounded fields, and records of tensors and numbers."""

from __future__ import annotations

from typing import Annotated, Union

import msgspec
from msgspec import Meta

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
