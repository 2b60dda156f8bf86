"""What each argument of a function means for a definition, and where outputs go.

A solution takes the inputs of a definition and returns its outputs. A function of a library may
have more to it: ``out=`` and ``lse=`` buffers, inputs that it works on in place, a flag like
``return_lse`` that decides how much it returns, arguments that no definition knows. What is what is
worked out once, from the signature:

- An output whose `param` names an input goes back into that input.
- A parameter named like an output takes a buffer for it. ``out`` and ``output`` take one for the
  first output that has no other place, or a tuple of them. Without a definition, ``lse`` takes one
  for the second output.
- ``return_x`` decides whether output ``x`` is returned; the last one, if none is called so.
- Hints, such as ``enable_pdl``, change nothing.
- All other parameters are inputs, matched as for a decorated function (`binding.match`). What is
  left over must have its default, or the call is not one of the definition.

A call returns what the annotation says; without one, all outputs that are not written in place, and
None if there are none, or if the buffers cannot be left out. Where the caller gives a buffer, that
very object is returned.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.errors import ConfigError, DataError
from flashinfer_bench.routing.binding import (
    Canonical,
    drop_object,
    match,
    quick_binder,
    returns_of,
    same_value,
    write_back,
)
from flashinfer_bench.routing.patch_manager import UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from flashinfer_bench.apply.dispatch.layout import Layout
    from flashinfer_bench.data import Definition
    from flashinfer_bench.routing.patch_points import Args, Kwargs

    Takes = Optional[Mapping[str, bool]]
    """What a solution takes by name, and whether it needs it; None for anything."""

# Reasons for which a call goes to the original, beside those of the dispatcher.
ARGUMENTS = "arguments"  # they do not fit the signature: the original says what is wrong
EXTRAS = "argument not in the definition"
BUFFER = "buffer"  # of another dtype or shape than the output, or one that a gradient is wanted of
PLACE = "no place for an output"
MORE_OUTPUTS = "more outputs than the definition has"

_HINTS = frozenset({"enable_pdl"})  # may change how quick a call is, and nothing else
_OUT = ("out", "output")
_LSE = "lse"
_FLAG = "return_"
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
_ANYTHING = (Exception,)
_CONTAINERS = (tuple, list, dict, type(None))


class Bound(NamedTuple):
    """The arguments of one call, told apart.

    Attributes
    ----------
    inputs : dict of str to Any
        By the names that a solution knows them by, in the order of the definition if there is one.
    buffers : dict of int to tensor
        Where outputs go, by position among the definition's outputs: passed in to be written to,
        or inputs that are worked on in place.
    returned : tuple of int, optional
        Which outputs the call returns; None: however many there are.
    """

    inputs: dict[str, Any]
    buffers: dict[int, Any]
    returned: Optional[tuple[int, ...]]


class Convention:
    """What each argument of a function means for one definition.

    Parameters
    ----------
    label : str
        What people call the function.
    signature : inspect.Signature
        Its parameters.
    name : str
        The definition.
    layout : Layout, optional
        Of the definition, if that is known.
    takes : mapping of str to bool, optional
        What the solution takes by name, and whether it needs it, where there is no definition; None
        for anything.
    original : callable, optional
        The function itself, to look up names of its annotation in.

    Raises
    ------
    ConfigError
        If the signature cannot be one of the definition's, or of the solution's.
    """

    def __init__(
        self,
        label: str,
        signature: Signature,
        name: str,
        layout: Optional[Layout] = None,
        takes: Takes = None,
        original: Optional[Callable[..., Any]] = None,
    ) -> None:
        annotation = signature.return_annotation
        self._where = f"API {label}: solution of definition '{name}'"
        self._signature = signature
        self._binder = quick_binder(signature)
        self._layout = layout
        self._takes = takes
        self._returns = returns_of(Any if annotation is Signature.empty else annotation, original)
        # Parameters by what they are for: inputs as the solution calls them, outputs by position.
        self._buffers: dict[int, str] = {}
        self._out = ""  # takes one buffer, or a tuple of them, for outputs that have no other
        self._flags: list[str] = []
        try:
            if layout is None:
                outputs, written = ["", _LSE], {}
                left = self._tell_apart(set(takes or ()), outputs)
                called = {each: each for each in self._taken(left)}
            else:
                of, outputs = layout.definition, list(layout.definition.outputs)
                # What the function calls each input: its `param`, if there is such a parameter.
                called = {
                    each: spec.param if spec.param and spec.param in signature.parameters else each
                    for each, spec in of.inputs.items()
                }
                written = _written(of, called)
                free = ["" if index in written else each for index, each in enumerate(outputs)]
                left = self._tell_apart(set(called.values()), free)
            self._match(left, called, written, outputs)
        except ConfigError as error:
            hint = "name the solution's parameters as the API does, or give the definition"
            raise ConfigError(
                f"API {label} cannot be routed to definition '{name}': {error.message}",
                hint=error.hint or (hint if layout is None else None),
            ) from None

    # ----------------------------------------------------------------------- working it out

    def _tell_apart(self, inputs: Collection[str], outputs: list[str]) -> Signature:
        """Find buffers and flags by their names; return the other parameters.

        An input is one, whatever its name.
        """
        left = []
        for name, parameter in self._signature.parameters.items():
            is_input = name in inputs or isinstance(self._signature, Canonical)
            if is_input or parameter.kind in _VARIABLE:
                left.append(parameter)
            elif name in outputs:
                self._buffers[outputs.index(name)] = name
            # Nothing else says which output of a library is called how, without a definition.
            elif name in _OUT and not self._out and (not self._layout or parameter.default is None):
                self._out = name
            elif name.startswith(_FLAG) and isinstance(parameter.default, bool):
                self._flags.append(name)
            elif name not in _HINTS:
                left.append(parameter)
        return Signature(left)

    def _taken(self, left: Signature) -> list[str]:
        """Return the inputs of a solution whose definition is not known."""
        named = {name: each for name, each in left.parameters.items() if each.kind not in _VARIABLE}
        takes = self._takes
        drop_object(named, set(takes or ()))
        if takes is None:
            return list(named)
        # If the API needs something else, it has other names: by position, as for a definition.
        renamed = any(
            each.default is Parameter.empty for each in named.values() if each.name not in takes
        )
        return [name for name, needed in takes.items() if name in named or (needed and renamed)]

    def _match(
        self,
        left: Signature,
        called: Mapping[str, str],
        written: Mapping[int, str],
        outputs: list[str],
    ) -> None:
        """Match the parameters with inputs, as the function calls them, and outputs."""
        parameters, known = self._signature.parameters, self._layout is not None
        every = range(len(outputs))
        self._targets = tuple(i for i in every if i not in written and i not in self._buffers)
        passed = [outputs[index] for index in self._targets] if known and not self._out else []
        binding = match(left, list(called.values()), passed)
        self._rest = binding.rest
        self._inputs = dict(zip(called, binding.inputs, strict=True))
        self._buffers |= dict(zip(self._targets, binding.outputs, strict=False))
        self._in_place = {index: self._inputs[name] for index, name in written.items()}
        # Of parameters that must have them.
        self._defaults = {name: parameters[name].default for name in binding.extras}
        last = len(outputs) - 1 if len(outputs) > 1 and len(self._flags) == 1 else None
        names = {flag: flag.removeprefix(_FLAG) for flag in self._flags}
        # None: an output that the definition lacks.
        self._flagged = {
            flag: outputs.index(name) if name in outputs else last for flag, name in names.items()
        }
        places = [parameters[name].default for name in (*self._buffers.values(), self._out) if name]
        number = self._returns.number
        fresh = tuple(index for index in every if index not in self._in_place)
        self._returned: Optional[tuple[int, ...]] = None
        if number is None:
            if places and all(default is Parameter.empty for default in places):
                self._returned = ()
            elif known:
                self._returned = fresh
        elif not known:
            self._returned = tuple(range(number))
        elif number > len(outputs):
            raise ConfigError(f"it returns {number} outputs, and the definition has {len(outputs)}")
        else:
            self._returned = (fresh if number <= len(fresh) else tuple(every))[:number]

    def usual_call(self) -> Optional[tuple[int, tuple[Any, ...]]]:
        """Return how the usual call can be told without looking at each argument, if it can.

        It has all inputs in front, leaves the rest alone, and wants the only output.

        Returns
        -------
        (int, tuple) or None
            How many inputs there are, and what is behind them by default.
        """
        parameters, count = self._signature.parameters, len(self._inputs)
        in_order = list(parameters)[:count] == [*self._inputs.values()]
        if not in_order or not {each.kind for each in parameters.values()} <= _BY_POSITION:
            return None
        if self._in_place or self._flags or not self._passes_through(self._returned, object):
            return None
        return count, tuple(each.default for each in parameters.values())[count:]

    # ---------------------------------------------------------------------------- arguments

    def bind(self, args: Args, kwargs: Kwargs) -> Bound:
        """Tell the arguments of a call apart.

        Raises
        ------
        UnroutableError
            If the call is not one of the definition.
        """
        values = self._binder(args, kwargs)
        for name, default in self._defaults.items():
            if not same_value(values[name], default):
                raise UnroutableError(EXTRAS)
        inputs = {name: values[parameter] for name, parameter in self._inputs.items()}
        for name in self._rest:
            further = values.get(name)
            if not further:
                continue
            # Only without a definition may there be anything in ``**kwargs``.
            known = self._layout is None and isinstance(further, dict)
            if not known or (self._takes is not None and not further.keys() <= self._takes.keys()):
                raise UnroutableError(EXTRAS)
            inputs |= further
        return Bound(inputs, self._places(values, inputs), self._wanted(values))

    def _places(self, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[int, Any]:
        found = {index: values[name] for index, name in self._buffers.items()}
        if self._out:
            given = values[self._out]
            several = given if isinstance(given, (tuple, list)) else [given]
            if len(several) > len(self._targets):
                raise UnroutableError(PLACE)
            found.update(zip(self._targets, several, strict=False))
        found = {index: buffer for index, buffer in found.items() if buffer is not None}
        found.update((index, values[name]) for index, name in self._in_place.items())
        if found:
            self._check_places(found, list(inputs.values()))
        return dict(sorted(found.items()))

    def _check_places(self, buffers: Mapping[int, Any], inputs: list[Any]) -> None:
        """Refuse buffers that no output of the definition belongs into."""
        import torch

        sizes: dict[str, int] = {}
        for index, buffer in buffers.items():
            if not isinstance(buffer, torch.Tensor):
                raise UnroutableError(PLACE)
            odd = buffer.is_nested or buffer.layout is not torch.strided
            if odd or (buffer.requires_grad and torch.is_grad_enabled()):
                raise UnroutableError(BUFFER)
            if self._layout is None:
                continue
            operand = self._layout.outputs[index]
            try:
                sizes = sizes or self._layout.sizes(inputs)
            except _ANYTHING:  # nested tensors have no shape, nor has what is no tensor
                return  # the guards refuse the call
            wanted = [sizes.get(str(size), size) for size in operand.shape or ()]
            fits = buffer.dtype == operand.dtype and buffer.dim() == len(wanted)
            # Of an axis that no input shows the size is not known.
            shape = zip(wanted, buffer.shape, strict=False)
            fits = fits and all(isinstance(size, str) or size == here for size, here in shape)
            devices = {getattr(value, "device", buffer.device) for value in inputs}
            if not fits or devices != {buffer.device}:
                raise UnroutableError(BUFFER)

    def _wanted(self, values: Mapping[str, Any]) -> Optional[tuple[int, ...]]:
        chosen = self._returned
        if not self._flagged:
            return chosen
        if any(index is None and values[name] for name, index in self._flagged.items()):
            raise UnroutableError(MORE_OUTPUTS)
        flags = {index: bool(values[name]) for name, index in self._flagged.items()}
        if chosen is None:
            chosen = (0, *(index for index, wanted in flags.items() if wanted and index))
        return tuple(index for index in chosen if flags.get(index, True))

    # ------------------------------------------------------------------------------ outputs

    def deliver(self, bound: Bound, result: Any) -> Any:
        """Put outputs where the call wants them, and return what the function would have returned.

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
        if not buffers and self._passes_through(wanted, type(result)):
            return result
        results, names = self._listed(result)
        wanted = tuple(range(len(results))) if wanted is None else wanted
        least = 1 + max((*wanted, *buffers), default=-1)
        if len(results) < least:
            raise self._error(f"got {len(results)} outputs, but the call wants {least}")
        if self._returns.kind == "none" and self._layout is None and len(results) > len(buffers):
            raise self._error(
                f"got {len(results)} outputs for {len(buffers)} buffers, and it returns None",
                hint="have the solution write into its inputs and return None, or give the "
                "definition, whose outputs name by `param` the inputs that they are written into",
            )
        for index, buffer in buffers.items():
            is_number = isinstance(results[index], (bool, int, float)) and buffer.dim() == 0
            found, expected = _description(results[index]), _description(buffer)
            if not is_number and found != expected:
                name = index if self._layout is None else repr(names[index])
                raise self._error(f"output {name} is {found}, but goes into {expected}")
        write_back(results, buffers)
        return self._returns.wrap(
            [buffers.get(index, results[index]) for index in wanted],
            [names[index] for index in wanted],
        )

    def _passes_through(self, wanted: Optional[tuple[int, ...]], kind: type) -> bool:
        """Return whether a call that wants these outputs returns what the solution returned."""
        if self._returns.kind not in ("any", "one"):
            return False
        if wanted is None:
            return self._returns.kind == "any"
        alone = self._layout is not None and len(self._layout.outputs) == 1
        return alone and wanted == (0,) and kind not in _CONTAINERS

    def _listed(self, result: Any) -> tuple[list[Any], list[str]]:
        from flashinfer_bench.compile import list_outputs

        results = list_outputs(result, None)
        if self._layout is not None:  # the dispatcher has looked at them
            return results, [operand.name for operand in self._layout.outputs]
        if isinstance(result, dict):
            return results, [str(name) for name in result]
        if self._returns.kind == "dict":
            raise self._error(f"got a {type(result).__name__}, but the API returns a dict")
        return results, [str(index) for index in range(len(results))]

    def _error(self, problem: str, *, hint: str = "") -> DataError:
        return DataError(
            f"{self._where}: {problem}",
            hint=hint or "correct the solution, or take the definition out of the mapping",
        )


def _description(value: Any) -> str:
    try:
        return f"{list(value.shape)} of {value.dtype} on {value.device}"
    except _ANYTHING:  # no tensor, or a nested one
        return f"a {type(value).__name__}"


def _written(definition: Definition, called: dict[str, str]) -> dict[int, str]:
    """Return the input that each output is written back into, where one is declared."""
    found: dict[int, str] = {}
    by_parameter = {parameter: name for name, parameter in called.items()}
    for index, (output, spec) in enumerate(definition.outputs.items()):
        if spec.param is None:
            continue
        name = spec.param if spec.param in called else by_parameter.get(spec.param)
        if name is None:
            raise ConfigError(
                f"output '{output}' is written back into '{spec.param}', which is no input",
                hint=f"inputs of the definition are {', '.join(called)}",
            )
        if name in found.values():
            raise ConfigError(f"two outputs are written back into '{spec.param}'")
        found[index] = name
    return found
