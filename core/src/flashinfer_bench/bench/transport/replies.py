"""What a candidate answers; all of it is untrusted."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import msgspec
from msgspec import Meta

from flashinfer_bench.bench.transport.fields import (
    MAX_VALUES,
    Extent,
    Message,
    Milliseconds,
    Name,
    Notes,
    Record,
    Text,
    Values,
)


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
