"""What is kept of one call until it is written.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional, Union

if TYPE_CHECKING:
    import torch

    Scalar = Union[bool, int, float]
    InputValue = Union[torch.Tensor, bool, int, float]


@dataclass(eq=False)
class WorkloadEntry:
    """One call, as it will become a workload.

    Parameters
    ----------
    def_name : str
        The definition that the call is of.
    axes : dict of str to int
        Value of each variable axis, in the order of the definition.
    inputs_to_dump : dict of str to tensor or number
        What the workload has to say of single inputs: the tensors that the dump policy picked, and
        the number of each scalar input. Inputs that are missing here become random ones. A tensor
        is a copy on the CPU that nobody else writes to; while a CUDA graph is captured it is the
        program's own, see `is_deferred`.
    order : int
        Number of the call among all that were kept by this process, from 0 on.
    cuda_graph_snapshot : dict of str to tensor, optional
        Copies of the tensors above that were the program's own, taken after the graph had run. They
        are in `inputs_to_dump` as well when the entry is handed to the store.
    is_deferred : bool
        Whether `inputs_to_dump` still refers to tensors of the program. Never set in an entry that
        is handed to the store.
    """

    def_name: str
    axes: dict[str, int]
    inputs_to_dump: dict[str, InputValue]
    order: int
    cuda_graph_snapshot: Optional[dict[str, torch.Tensor]] = None
    is_deferred: bool = field(default=False, repr=False)

    def values(self) -> dict[str, InputValue]:
        """Return what is written, by input: snapshots where there are some."""
        return {**self.inputs_to_dump, **(self.cuda_graph_snapshot or {})}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that are written, by input."""
        return {name: value for name, value in self.values().items() if not _is_number(value)}  # type: ignore[misc]

    def scalars(self) -> dict[str, Scalar]:
        """Return the numbers that are written, by input."""
        return {name: value for name, value in self.values().items() if _is_number(value)}  # type: ignore[misc]

    def nbytes(self) -> int:
        """Return the bytes of all tensors that the entry holds."""
        held = [*self.tensors().values()]
        return sum(each.numel() * each.element_size() for each in held)


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float))
