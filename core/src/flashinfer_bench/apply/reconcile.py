"""From the call of a library's function to the inputs of a solution, and back to what it returns.

What each argument means has been worked out before, see `conventions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench.apply.apis import Bound, UnroutableError
from flashinfer_bench.apply.returns import ANYTHING, Returns
from flashinfer_bench.errors import DataError
from flashinfer_bench.integration.binding import same_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashinfer_bench.apply.dispatch.layout import Operand
    from flashinfer_bench.integration.slots import Args, Kwargs

# Reasons for which a call goes to the original, beside those of the dispatcher.
ARGUMENTS = "arguments"  # they do not fit the signature: the original says what is wrong
EXTRAS = "argument not in the definition"
BUFFER = "buffer"  # of another dtype or shape than the output, or one that a gradient is wanted of
PLACE = "no place for an output"
MORE_OUTPUTS = "more outputs than the definition has"


_ANYTHING = (Exception,)
_CONTAINERS = (tuple, list, dict, type(None))


class Shortcut(NamedTuple):
    """What to look at in the usual call.

    Attributes
    ----------
    inputs : tuple of int
        Positions of the inputs.
    idle : tuple of (int, Any)
        Positions of other arguments, and what they must be if they are given.
    most : int
        How many arguments there may be.
    """

    inputs: tuple[int, ...]
    idle: tuple[tuple[int, Any], ...]
    most: int


@dataclass(frozen=True)
class Convention:
    """What each argument of an API means for one definition.

    Parameters
    ----------
    api : str
        Name of the API.
    definition : str
        Name of the definition.
    binder : callable
        See `quick_binder`.
    inputs : tuple of (str, str)
        For each input: what the solution calls it, and the parameter.
    positional : tuple of str
        All parameters, if all may be given by position; else empty.
    outputs : tuple of Operand, optional
        What the definition says about the outputs; None where it is not known.
    in_place : dict of int to str
        For outputs that are written back: the parameter.
    buffers : dict of int to str
        For outputs that a parameter takes a buffer for: the parameter.
    out : (str, tuple of int), optional
        The parameter that takes one buffer, or a tuple of them, and the outputs that it may hold.
    flags : tuple of (int or None, str)
        Parameters that have an output returned; None for one that the definition does not have.
    defaults : dict of str to Any
        Parameters that must have these values.
    rest : tuple of str
        ``*args`` and ``**kwargs``.
    takes : frozenset of str, optional
        What the solution takes by name; None for anything.
    axes : dict of str to (str, int)
        For each variable axis: a parameter that has it, and in which dimension.
    returns : Returns
        How outputs are returned.
    returned : tuple of int, optional
        Which ones, but for the flags; None: as many as there are.
    """

    api: str
    definition: str
    binder: Callable[[Args, Kwargs], dict[str, Any]]
    inputs: tuple[tuple[str, str], ...]
    positional: tuple[str, ...] = ()
    outputs: Optional[tuple[Operand, ...]] = None
    in_place: dict[int, str] = field(default_factory=dict)
    buffers: dict[int, str] = field(default_factory=dict)
    out: Optional[tuple[str, tuple[int, ...]]] = None
    flags: tuple[tuple[Optional[int], str], ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rest: tuple[str, ...] = ()
    takes: Optional[frozenset[str]] = None
    axes: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    returns: Returns = ANYTHING
    returned: Optional[tuple[int, ...]] = None

    # ---------------------------------------------------------------------------- arguments

    def bind(self, args: Args, kwargs: Kwargs) -> Bound:
        """Tell the arguments of a call apart.

        Raises
        ------
        UnroutableError
            If the call is not one of the definition.
        """
        values = self.binder(args, kwargs)
        for name, default in self.defaults.items():
            if not same_value(values[name], default):
                raise UnroutableError(EXTRAS)
        inputs = {name: values[parameter] for name, parameter in self.inputs}
        for name in self.rest:
            inputs.update(self._further(values.get(name)))
        buffers = self._places(values) if self._has_places else {}
        return Bound(inputs, buffers, self._selection(values) if self.flags else self.returned)

    def _further(self, rest: Any) -> dict[str, Any]:
        """Return what ``**kwargs`` adds: only without a definition may there be anything."""
        if not rest:
            return {}
        known = self.outputs is None and isinstance(rest, dict)
        if not known or (self.takes is not None and not rest.keys() <= self.takes):
            raise UnroutableError(EXTRAS)
        return dict(rest)

    @cached_property
    def shortcut(self) -> Optional[Shortcut]:
        """How the usual call can be told without looking at each argument; None if it cannot.

        It gives all inputs by position, leaves the rest alone, and wants the only output.
        """
        positions = {name: index for index, name in enumerate(self.positional)}
        inputs = [parameter for _, parameter in self.inputs]
        if (
            self.in_place
            or self.flags
            or self.rest
            or not all(name in positions for name in inputs)
        ):
            return None
        if not self.passes_through(self.returned, object):
            return None
        idle = {**dict.fromkeys(self.buffers.values()), **self.defaults}
        if self.out is not None:
            idle[self.out[0]] = None
        return Shortcut(
            tuple(positions[name] for name in inputs),
            tuple((positions[name], default) for name, default in idle.items()),
            len(positions),
        )

    @cached_property
    def _has_places(self) -> bool:
        return bool(self.in_place or self.buffers or self.out)

    def _places(self, values: Mapping[str, Any]) -> dict[int, Any]:
        found = {index: values[name] for index, name in (*self.buffers.items(),)}
        if self.out is not None:
            name, targets = self.out
            given = values[name]
            several = list(given) if isinstance(given, (tuple, list)) else [given]
            if len(several) > len(targets):
                raise UnroutableError(PLACE)
            found.update(zip(targets, several, strict=False))
        found = {index: buffer for index, buffer in found.items() if buffer is not None}
        found.update((index, values[name]) for index, name in self.in_place.items())
        for index, buffer in found.items():
            self._check_place(index, buffer, values)
        return found

    def _check_place(self, index: int, buffer: Any, values: Mapping[str, Any]) -> None:
        """Refuse a buffer that no output of the definition belongs into."""
        import torch

        if not isinstance(buffer, torch.Tensor):
            raise UnroutableError(PLACE)
        odd = buffer.is_nested or buffer.layout is not torch.strided
        if odd or (buffer.requires_grad and torch.is_grad_enabled()):
            raise UnroutableError(BUFFER)
        if self.outputs is not None and not self._fits(self.outputs[index], buffer, values):
            raise UnroutableError(BUFFER)

    def _fits(self, operand: Operand, buffer: Any, values: Mapping[str, Any]) -> bool:
        wanted = [self._size(size, values) for size in operand.shape or ()]
        given = [getattr(values[parameter], "device", None) for _, parameter in self.inputs]
        fits = buffer.dtype == operand.dtype and buffer.dim() == len(wanted)
        fits = fits and all(device in (None, buffer.device) for device in given)
        return fits and all(
            size is None or size == given for size, given in zip(wanted, buffer.shape, strict=True)
        )

    def _size(self, size: Union[int, str], values: Mapping[str, Any]) -> Optional[int]:
        """Return how large an axis is in this call; None if no input tells."""
        if isinstance(size, int):
            return size
        parameter, dimension = self.axes.get(size, ("", 0))
        shape = _shape_of(values.get(parameter))
        return shape[dimension] if dimension < len(shape) else None

    def _selection(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        off = set()
        on = []
        for index, name in self.flags:
            if index is None:
                if values[name]:
                    raise UnroutableError(MORE_OUTPUTS)
            elif values[name]:
                on.append(index)
            else:
                off.add(index)
        chosen = (0, *on) if self.returned is None else self.returned
        return tuple(index for index in chosen if index not in off)

    # ------------------------------------------------------------------------------ outputs

    def deliver(self, bound: Bound, result: Any) -> Any:
        """Put outputs where the call wants them, and return what the API would have returned.

        All of them are checked before the first is written.

        Parameters
        ----------
        bound : Bound
            The call.
        result : Any
            What the solution returned: an output, a tuple, list or dict of them, or None.

        Raises
        ------
        DataError
            If the outputs differ in number, shape, dtype or device from what the call wants.
        """
        wanted, buffers = bound.returned, bound.buffers
        if not buffers and self.passes_through(wanted, type(result)):
            return result
        results, names = self._listed(result)
        wanted = tuple(range(len(results))) if wanted is None else wanted
        self._check_count(results, buffers, wanted)
        for index, buffer in buffers.items():
            self._check(index, results[index], buffer)
        write_back(results, buffers)
        return self.returns.wrap(
            [buffers.get(index, results[index]) for index in wanted],
            [names[index] for index in wanted],
        )

    def passes_through(self, wanted: Optional[tuple[int, ...]], kind: type) -> bool:
        """Return whether a call that wants these outputs returns what the solution returned.

        Parameters
        ----------
        wanted : tuple of int, optional
            As of `Bound.returned`.
        kind : type
            Type of what the solution returned.
        """
        if self.returns.kind not in ("any", "one"):
            return False
        if wanted is None:
            return self.returns.kind == "any"
        alone = self.outputs is not None and len(self.outputs) == 1
        return alone and wanted == (0,) and kind not in _CONTAINERS

    def _listed(self, result: Any) -> tuple[list[Any], list[str]]:
        from flashinfer_bench.compile.outputs import list_outputs

        if self.outputs is not None:
            names = [operand.name for operand in self.outputs]
            if isinstance(result, dict) and result.keys() == {*names}:
                return [result[name] for name in names], names
            results = list_outputs(result, None)
            if len(results) != len(names):
                raise self._error(f"got {len(results)} outputs, not {len(names)}")
            return results, names
        results = list_outputs(result, None)
        if isinstance(result, dict):
            return results, [str(name) for name in result]
        if self.returns.kind == "dict":
            raise self._error(f"got a {type(result).__name__}, but the API returns a dict")
        return results, [str(index) for index in range(len(results))]

    def _check_count(
        self, results: Sequence[Any], buffers: Mapping[int, Any], wanted: Sequence[int]
    ) -> None:
        least = 1 + max((*wanted, *buffers), default=-1)
        if len(results) < least:
            raise self._error(f"got {len(results)} outputs, but the call wants {least}")
        if self.returns.kind == "none" and self.outputs is None and len(results) > len(buffers):
            raise self._error(
                f"got {len(results)} outputs for {len(buffers)} buffers, and it returns None",
                hint="have the solution write into its inputs and return None, or give the "
                "definition, whose outputs name by `param` the inputs that they are written into",
            )

    def _check(self, index: int, result: Any, buffer: Any) -> None:
        if isinstance(result, (bool, int, float)) and buffer.dim() == 0:
            return
        found, wanted = _description(result), _description(buffer)
        if found != wanted:
            raise self._error(f"is {found}, but goes into {wanted}", output=self._name(index))

    def _name(self, index: int) -> str:
        return repr(self.outputs[index].name) if self.outputs is not None else str(index)

    def _error(self, problem: str, *, output: str = "", hint: str = "") -> DataError:
        what = f"output {output} {problem}" if output else problem
        return DataError(
            f"API {self.api}: solution of definition '{self.definition}': {what}",
            hint=hint or "correct the solution, or take the definition out of the mapping",
        )


def _description(value: Any) -> str:
    try:
        return f"{list(value.shape)} of {value.dtype} on {value.device}"
    except _ANYTHING:  # no tensor, or a nested one
        return f"a {type(value).__name__}"


def _shape_of(value: Any) -> Sequence[int]:
    try:
        shape: Sequence[int] = value.shape
    except _ANYTHING:  # nested tensors have none, and what is no tensor
        return ()
    return shape


def write_back(results: list[Any], buffers: Mapping[int, Any]) -> None:
    """Copy outputs into buffers, as if all were copied at the same time.

    A solution may return views of its inputs, which may be buffers themselves.

    Parameters
    ----------
    results : list
        All outputs. Those that writing would change are replaced by copies.
    buffers : mapping of int to torch.Tensor
        Where some go, by their position.
    """
    memory = {memory_of(buffer) for buffer in buffers.values()}
    for index, result in enumerate(results):
        if memory_of(result) in memory and not _is_view_of(result, buffers.get(index)):
            results[index] = result.clone()
    for index, buffer in buffers.items():
        result = results[index]
        if isinstance(result, (bool, int, float)):
            buffer.fill_(result)
        elif not _is_view_of(result, buffer):
            buffer.copy_(result)


def memory_of(value: Any) -> Any:
    """Return where a tensor's memory begins; for anything else, what no tensor has."""
    storage = getattr(value, "untyped_storage", None)
    if storage is None:
        return None
    try:
        return value.device, storage().data_ptr()
    except _ANYTHING:  # of a fake tensor, or a sparse one
        return None, id(value)


def _is_view_of(result: Any, buffer: Any) -> bool:
    """Return whether both are the same elements of memory, in the same order."""
    if result is buffer:
        return True
    if buffer is None or memory_of(result) != memory_of(buffer):
        return False
    same: bool = (
        result.data_ptr() == buffer.data_ptr()
        and result.shape == buffer.shape
        and result.stride() == buffer.stride()
    )
    return same
