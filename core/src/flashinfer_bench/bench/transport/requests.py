"""What the judge asks for."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from flashinfer_bench.bench.transport.fields import (
    MAX_VALUES,
    Extent,
    Message,
    Name,
    Path,
    Slot,
    Value,
    Values,
    Way,
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
    ways : list of str
        For each input how it varies from call to call (see `flashinfer_bench.tensors.vary`).
        Empty: `Stage` will not be asked for.
    """

    slot: Slot
    values: Values
    axes: Annotated[dict[Name, Extent], Meta(max_length=MAX_VALUES)]
    ways: Annotated[list[Way], Meta(max_length=MAX_VALUES)] = msgspec.field(default_factory=list)


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


class Stage(Message):
    """Make everything ready for one call of the solution, but do not call it. Reply: `Done`.

    Inputs come to lie at other addresses, and those that rotate have another value in each place;
    what the last `Fire` patched is restored; outputs are allocated anew and poisoned; the caches of
    a device are flushed, also after the inputs have changed, unless they are to be warm.

    Attributes
    ----------
    slot : int
        Which inputs.
    shifts : list of int
        For each input by how many elements it moves; 0 for scalars.
    output_shift : int
        By how many bytes the outputs move.
    warm : bool
        Leave the caches as they are.
    """

    slot: Slot
    shifts: Annotated[list[Extent], Meta(max_length=MAX_VALUES)]
    output_shift: Extent
    warm: bool = False


class Fire(Message):
    """Mix and patch the staged inputs, and make and time the call. Replies: `Changed` to `Fired`.

    The blobs of `patches` follow. Only now does the candidate learn the final values.

    Attributes
    ----------
    timer : str
        Name of the timing backend.
    mixes : list of int
        For each input what chooses its signs or columns; 0: they stay as they were put.
    inputs : list of int
        Which inputs are patched.
    patches : list of Value
        For each of them two tensors: flat positions (int64), and the elements to write there.
    """

    timer: Name
    mixes: Annotated[list[Extent], Meta(max_length=MAX_VALUES)]
    inputs: Annotated[list[Slot], Meta(max_length=MAX_VALUES)]
    patches: Annotated[list[Value], Meta(max_length=2 * MAX_VALUES)]


class Collect(Message):
    """Send the outputs of the last `Fire`. Reply: `Outputs`.

    Attributes
    ----------
    budget : int
        As of `Call`.
    """

    budget: Extent


class Inspect(Message):
    """Say which inputs the last call has changed. Reply: `Inspected`."""
