"""Between the two calling conventions: outputs that are returned, and those that are passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.tensors.dtypes import first_places, operands_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tensors.dtypes import Size


def list_outputs(result: Any, definition: Optional[Definition]) -> list[Any]:
    """Return what a solution returned as a list, one entry for each output.

    Parameters
    ----------
    result : Any
        A single output, a tuple or list of them, a mapping from output name to output, or None.
    definition : Definition, optional
        Gives the order of a mapping's entries.

    Returns
    -------
    list
        In declaration order where names are given, else in the order given. The number of a
        tuple's or list's entries is not checked. Of a subclass, what it really holds: a method of
        its own could compute the outputs only now, after the call has been timed.

    Raises
    ------
    ValueError
        If a mapping lacks an output, or has one that is not declared.
    """
    if result is None:
        return []
    kind = type(result)  # what isinstance goes by as well, an object may give itself
    if issubclass(kind, dict):
        return _in_order(result, definition)
    if issubclass(kind, tuple):
        return [*tuple.__iter__(result)]
    return [*list.__iter__(result)] if issubclass(kind, list) else [result]


def unpack(result: Any, definition: Optional[Definition]) -> Any:
    """Return a single output as itself, several as a tuple, none as None.

    A mapping from output name to output is put into declaration order where `definition` is given.
    """
    if isinstance(result, dict) and definition is not None:
        result = tuple(_in_order(result, definition))
    if isinstance(result, tuple) and len(result) < 2:
        return result[0] if result else None
    return result


def _in_order(result: dict[str, Any], definition: Optional[Definition]) -> list[Any]:
    if definition is None:
        return [*dict.values(result)]
    names = list(definition.outputs)
    given = [*dict.keys(result)]
    if any(type(name) is not str for name in given) or {*given} != {*names}:
        raise ValueError(
            f"returned outputs {_names(given)}, but {definition.name!r} declares {_names(names)}"
        )
    return [dict.__getitem__(result, name) for name in names]


def _names(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names) or "none"


def copy_outputs(
    results: Sequence[Any], destinations: Sequence[torch.Tensor], names: Sequence[str]
) -> None:
    """Copy returned outputs into the tensors that were passed in for them.

    Parameters
    ----------
    results : sequence
        Tensors, or Python numbers for scalars.
    destinations : sequence of torch.Tensor
        Where they go.
    names : sequence of str
        What they are called, for messages.

    Raises
    ------
    ValueError
        If number, shape or dtype differ.
    """
    if len(results) != len(destinations):
        raise ValueError(
            f"returned {len(results)} outputs for {len(destinations)} destinations: {_names(names)}"
        )
    for name, result, destination in zip(names, results, destinations, strict=True):
        _copy_output(name, result, destination)


def _copy_output(name: str, result: Any, destination: torch.Tensor) -> None:
    if isinstance(result, (bool, int, float)):
        destination.fill_(result)
        return
    if tuple(result.shape) != tuple(destination.shape) or result.dtype != destination.dtype:
        raise ValueError(
            f"output {name!r}: returned {list(result.shape)} of {result.dtype}, "
            f"but the destination is {list(destination.shape)} of {destination.dtype}"
        )
    destination.copy_(result)


class OutputAllocator:
    """Allocates the outputs of a definition from the inputs of a call.

    Where each size comes from is worked out once, so that a call does little more than allocate.

    Parameters
    ----------
    definition : Definition
        Declares inputs and outputs.

    Raises
    ------
    ValueError
        If an output has a variable axis that no input shows.
    """

    def __init__(self, definition: Definition) -> None:
        operands = operands_of(definition.inputs, definition.const_axes)
        places = first_places(operands)
        tensors = (index for index, each in enumerate(operands) if each.shape is not None)
        self._first = next(tensors, None)
        self._outputs = [
            ([_source(each.name, size, places) for size in each.shape or ()], each.dtype)
            for each in operands_of(definition.outputs, definition.const_axes)
        ]

    def allocate(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Allocate uninitialised outputs on the device of the first input tensor.

        Parameters
        ----------
        inputs : sequence
            The inputs of the call in declaration order.

        Returns
        -------
        list of torch.Tensor
            In declaration order; a scalar output is a tensor without dimensions.
        """
        import torch

        first: Any = inputs[self._first] if self._first is not None else None
        device = first.device if first is not None else None
        return [
            torch.empty(
                [size if source is None else inputs[source].size(size) for source, size in sizes],
                dtype=dtype,
                device=device,
            )
            for sizes, dtype in self._outputs
        ]


def _source(
    name: str, size: Size, places: Mapping[str, tuple[int, int]]
) -> tuple[Optional[int], int]:
    """Return the input and its dimension that has a size; or None and the size if it is fixed."""
    if isinstance(size, int):
        return None, size
    if size not in places:
        raise ValueError(
            f"output {name!r} cannot be allocated: no input has axis {size!r}; "
            "call in destination-passing style instead"
        )
    return places[size]
