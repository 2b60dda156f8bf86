"""What is wrong with workloads that no benchmark should run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from pathlib import Path


class Reason(str, Enum):
    """Why something is taken out."""

    DUPLICATE = "duplicate"
    """A workload with the same axes and the same inputs, tensor by tensor, as one before it."""

    ZERO_AXIS = "zero_axis"
    """A variable axis is 0: there is nothing to compute."""

    NOT_FINITE = "not_finite"
    """A scalar is infinite or NaN."""

    BAD_INDPTR = "bad_indptr"
    """Offsets of a ragged batch that do not begin at 0, or go down."""

    EMPTY_BATCH = "empty_batch"
    """Every sequence of the batch has length 0."""

    CONSTRAINT = "constraint"
    """A constraint of the definition does not hold."""

    OUTSIZED = "outsized"
    """It is larger than the limit that was given."""

    TRACE = "trace"
    """A trace of a workload that is taken out."""

    UNUSED_BLOB = "unused_blob"
    """A tensor file that nothing names."""


@dataclass(frozen=True)
class Finding:
    """One line or file that is to be taken out.

    Parameters
    ----------
    kind : Reason
        Why.
    path : Path
        The file, relative to the dataset.
    message : str
        Why, in words.
    line : int, optional
        Line in the file, from 1; None for the file itself, or if it is not one of lines.
    definition, uuid : str
        The workload; empty for a file.
    traces : int
        Number of traces that refer to the workload and to no equal one that stays.
    """

    kind: Reason
    path: Path
    message: str
    line: Optional[int] = None
    definition: str = ""
    uuid: str = ""
    traces: int = 0

    @property
    def where(self) -> str:
        """The place as ``file:line``."""
        return str(self.path) if self.line is None else f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Limits:
    """How large a workload may be; None for no limit.

    Parameters
    ----------
    max_bytes : int, optional
        Bytes of all inputs and outputs together.
    max_elements : int, optional
        Elements of the largest input or output.
    """

    max_bytes: Optional[int] = None
    max_elements: Optional[int] = None
