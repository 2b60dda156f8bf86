"""What the judge asks for."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from flashinfer_bench.bench.transport.fields import (
    MAX_VALUES,
    Extent,
    Message,
    Name,
    Path,
    Slot,
    Values,
)


class Confine(Message):
    """Give up for good what a solution does not need; before any code of it. Reply: `Confined`.

    Attributes
    ----------
    level : str
        ``auto``: as far as this system allows.
    writable : list of str
        Folders that stay writable besides the process's own.
    hidden : list of str
        Folders that are empty for the process.
    """

    level: Literal["auto"]
    writable: Annotated[list[Path], Meta(max_length=256)]
    hidden: Annotated[list[Path], Meta(max_length=256)]


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


class Collect(Message):
    """Send the outputs of the last `Fire`. Reply: `Outputs`.

    Attributes
    ----------
    budget : int
        As of `Call`.
    """

    budget: Extent
