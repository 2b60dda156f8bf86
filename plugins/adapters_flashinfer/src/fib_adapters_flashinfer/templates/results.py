"""What a function returns of its outputs, and where it puts them.

An output has a place in a call if the template names the parameter that it is written into, if a
parameter has the output's name, or if it is the first one without such a place and the function has
a parameter ``out`` or ``output``. A place that the caller leaves out is none.

What is returned goes by the annotation, and by flags such as ``return_lse``.
"""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.routing import Returns, UnroutableError, evaluated, returns_of, write_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Parameter

    import torch

OUTPUTS = "outputs not as the template has them"
"""Reason: a solution returned more, fewer, or other outputs."""

MORE_OUTPUTS = "more outputs wanted than the template has"
"""Reason: a flag asks for an output that the definition does not have."""

BUFFER = "buffer"
"""Reason: a buffer for an output is none, or is not like the output."""

_OUT = ("out", "output")
_FLAGS = ("return_", "output_final_")
_UNIONS = (typing.Union, types.UnionType)


class UnsupportedError(Exception):
    """Calls of a function cannot be described by its template; the message says why."""


class Output(NamedTuple):
    """One output of a template.

    Attributes
    ----------
    name : str
        What the template calls it.
    place : str or None
        The parameter that it is written into.
    item : int or None
        Which element of that parameter, if it takes a tuple.
    in_place : bool
        Whether every call gives that place.
    flag : str or None
        The parameter that has it returned.
    optional : bool
        Whether a call may do without it.
    narrow : bool
        Whether the function returns 32-bit integers, whatever definitions say.
    """

    name: str
    place: Optional[str] = None
    item: Optional[int] = None
    in_place: bool = False
    flag: Optional[str] = None
    optional: bool = False
    narrow: bool = False


@dataclass(frozen=True, eq=False)
class Results:
    """What becomes of the outputs of one function, by one template.

    Parameters
    ----------
    outputs : tuple of Output
        All of them.
    returned : tuple of int
        Which ones are returned, but for flags.
    returns : Returns
        In what.
    flags : tuple of str
        Parameters that ask for something that is no output of the template.
    handed : frozenset of int
        Outputs whose buffers are also inputs: a solution may write to these itself.
    """

    outputs: tuple[Output, ...]
    returned: tuple[int, ...]
    returns: Returns
    flags: tuple[str, ...]
    handed: frozenset[int] = frozenset()

    @property
    def parameters(self) -> set[str]:
        """Parameters that are places or flags."""
        used = {each.place for each in self.outputs} | {each.flag for each in self.outputs}
        return {name for name in (*used, *self.flags) if name is not None}

    @property
    def required(self) -> int:
        """How many outputs a definition has at least."""
        return sum(not each.optional for each in self.outputs)

    def places(self, values: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """Return the buffers of a call, by the position of the output.

        Raises
        ------
        UnroutableError
            If one is no tensor, or an output is asked for that there is not.
        """
        import torch

        if any(_is_on(values[name]) for name in self.flags):
            raise UnroutableError(MORE_OUTPUTS)
        found = {}
        for index, output in enumerate(self.outputs):
            if output.place is None:
                continue
            buffer = values[output.place]
            if buffer is None and not (output.in_place and not output.optional):
                continue
            if output.item is not None:
                buffer = element(buffer, output.item)
            if not isinstance(buffer, torch.Tensor):
                raise UnroutableError(BUFFER)
            found[index] = buffer
        return found

    def deliver(
        self, values: Mapping[str, Any], places: dict[int, torch.Tensor], result: Any
    ) -> Any:
        """Put outputs where a call wants them, and return what the function would return.

        Parameters
        ----------
        values : mapping of str to Any
            Arguments of the call.
        places : dict of int to torch.Tensor
            Its buffers.
        result : tensor or sequence
            The outputs of the definition.

        Raises
        ------
        UnroutableError
            If they do not fit. Nothing has been written then.
        """
        if not places and self._is_plain and not isinstance(result, (tuple, list, type(None))):
            return result
        if result is None and all(i in self.handed for i in range(self.required)):
            result = [places.get(index) for index in range(self.required)]
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        outputs = [_as_returned(*pair) for pair in zip(self.outputs, outputs, strict=False)] + (
            outputs[len(self.outputs) :]
        )
        wanted = [
            index if self._wanted(self.outputs[index], values) else None for index in self.returned
        ]
        needed = [*places, *(index for index in wanted if index is not None)]
        most = len(self.outputs)
        if not max(needed, default=-1) < len(outputs) <= most or len(outputs) < self.required:
            raise UnroutableError(OUTPUTS)
        for index, buffer in places.items():
            _check(outputs[index], buffer)
        write_back(outputs, places)
        every = [None if i is None else places.get(i, outputs[i]) for i in wanted]
        return self._wrap(every)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the only output is returned as it is."""
        alone = self.returned == (0,) and len(self.outputs) == 1
        return alone and self.returns.kind in ("any", "one") and not self.outputs[0].narrow

    def _wanted(self, output: Output, values: Mapping[str, Any]) -> bool:
        return True if output.flag is None else _is_on(values[output.flag])

    def _wrap(self, values: list[Any]) -> Any:
        number = self.returns.number
        if number is None:  # how many there are depends on flags
            values = [value for value in values if value is not None]
        elif self.returns.kind == "tuple":
            values += [None] * (number - len(values))
        return self.returns.wrap(values, [])

    def collect(
        self, values: Mapping[str, Any], places: Mapping[int, torch.Tensor], returned: Any
    ) -> Any:
        """Return the outputs of the definition, from what the function wrote and returned.

        Parameters
        ----------
        values, places
            Of the call, as of `deliver`.
        returned : Any
            What the function returned.
        """
        several = returned if isinstance(returned, (tuple, list)) else [returned]
        indices = [i for i in self.returned if self._wanted(self.outputs[i], values)]
        found = {**dict(zip(indices, several, strict=False)), **places}
        outputs = [found.get(index) for index in range(len(self.outputs))]
        while outputs and outputs[-1] is None:
            outputs.pop()
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def element(value: Any, index: int) -> Any:
    """Return an element of a tuple; None if there is no such."""
    known = isinstance(value, (tuple, list)) and len(value) > index
    return value[index] if known else None


def _is_on(flag: Any) -> bool:
    return flag is True or (isinstance(flag, int) and bool(flag))


def _as_returned(output: Output, value: Any) -> Any:
    """Return an output as the function's callers know it: sampled tokens are 32-bit integers."""
    import torch

    wide = output.narrow and getattr(value, "dtype", None) == torch.int64
    return value.to(torch.int32) if wide else value


def _check(output: Any, buffer: torch.Tensor) -> None:
    import torch

    same = isinstance(output, torch.Tensor) and (
        output.shape == buffer.shape
        and output.dtype == buffer.dtype
        and output.device == buffer.device
    )
    if not same:
        raise UnroutableError(BUFFER)


# ----------------------------------------------------------------------------------- reading


def read_results(template: Any, function: Callable[..., Any], taken: Mapping[str, Any]) -> Results:
    """Work out what becomes of the outputs of a function.

    Parameters
    ----------
    template : TraceTemplate
        FlashInfer's.
    function : callable
        Has these outputs.
    taken : mapping of str to Any
        Inputs of the template by name, with attributes `param` and `item`.

    Raises
    ------
    UnsupportedError
        If that cannot be told.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    annotation = evaluated(signature.return_annotation, function)
    returns = _returns(annotation, function)
    outputs = _flagged(_placed(template, parameters, taken, returns), parameters)
    if returns.kind == "none":
        for each in outputs:
            if each.place is None and not each.optional:
                raise UnsupportedError(
                    f"it works in place, and the template does not say where '{each.name}' goes"
                )
    claimed = {each.flag for each in outputs}
    known = {each.param for each in taken.values()}
    flags = [n for n, p in parameters.items() if _is_flag(n, p) and n not in claimed]
    idle = [name for name in flags if name not in known or name == "return_lse"]
    returned = _returned(outputs, returns, annotation)
    handed = frozenset(i for i, each in enumerate(outputs) if each.place in known)
    return Results(tuple(outputs), returned, returns, tuple(idle), handed)


def _returns(annotation: Any, function: Callable[..., Any]) -> Returns:
    if annotation is inspect.Signature.empty:
        return Returns()
    import torch

    returns = returns_of(annotation, function)
    named = isinstance(annotation, type) and annotation not in (torch.Tensor, tuple, list)
    if returns.kind == "any" and named:
        raise UnsupportedError(f"it returns an object of its own, {annotation.__name__}")
    return returns


def _placed(
    template: Any, parameters: Mapping[str, Parameter], taken: Mapping[str, Any], returns: Returns
) -> list[Output]:
    outputs = []
    for name, spec in template.outputs.items():
        declared = getattr(spec, "param", None)
        place = declared or (name if name in parameters else None)
        if place is not None and place not in parameters:
            if not spec.optional:
                raise UnsupportedError(
                    f"output '{name}' goes into '{place}', which is no parameter"
                )
            place = None
        item = taken[name].item if declared and name in taken else None
        given = place is not None and parameters[place].default is inspect.Parameter.empty
        narrow = name == "samples" and template.op_type == "sampling"
        outputs.append(Output(name, place, item, given, None, spec.optional, narrow))
    places = [(each.place, each.item) for each in outputs if each.place is not None]
    for taken_place in places:
        if places.count(taken_place) > 1:
            raise UnsupportedError(f"two outputs go into '{taken_place[0]}'")
    _give_out(outputs, parameters)
    return outputs


def _give_out(outputs: list[Output], parameters: Mapping[str, Parameter]) -> None:
    """Let ``out`` take the first output that has no other place."""
    used = {each.place for each in outputs}
    out = next((name for name in _OUT if name in parameters and name not in used), None)
    if out is None:
        return
    given = parameters[out].default is inspect.Parameter.empty
    for index, each in enumerate(outputs):
        if each.place is None:
            outputs[index] = each._replace(place=out, in_place=given)
            return
    raise UnsupportedError(f"parameter '{out}' takes no output of the template")


def _is_flag(name: str, parameter: Parameter) -> bool:
    switch = isinstance(parameter.default, bool) or parameter.annotation in (bool, "bool")
    return switch and name.startswith(_FLAGS)


def _flagged(outputs: list[Output], parameters: Mapping[str, Parameter]) -> list[Output]:
    """Tell which parameters have an output returned."""
    found = {}
    for name, parameter in parameters.items():
        if _is_flag(name, parameter):
            wanted = name.removeprefix("return_").removeprefix("output_")
            found.update(dict.fromkeys((wanted, wanted.replace("final_", "new_")), name))
    return [each._replace(flag=found.get(each.name)) for each in outputs]


def _returned(outputs: list[Output], returns: Returns, annotation: Any) -> tuple[int, ...]:
    every = tuple(range(len(outputs)))
    fresh = tuple(index for index in every if not outputs[index].in_place)
    if returns.kind == "none":
        return ()
    if returns.number is not None:
        chosen = fresh if returns.number <= len(fresh) else every
        lacking = returns.number - len(chosen)
        last = typing.get_args(annotation)[-lacking:] if lacking > 0 else ()
        if not all(type(None) in typing.get_args(each) for each in last):
            raise UnsupportedError(
                f"it returns {returns.number} values, and the template has {len(outputs)} outputs"
            )
        return chosen[: returns.number]
    chosen = tuple(i for i in fresh or every if outputs[i].flag or not outputs[i].optional)
    open_ends = [index for index in chosen if outputs[index].flag is None]
    if typing.get_origin(annotation) in _UNIONS and len(open_ends) > 1:
        raise UnsupportedError("how many of its outputs it returns is not known")
    return chosen
