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

from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.apis import Bound
from flashinfer_bench.apply.wrappers import tell_once
from flashinfer_bench.errors import ConfigError, DataError
from flashinfer_bench.routing.binding import (
    ANYTHING,
    Returns,
    match,
    quick_binder,
    returns_of,
    same_value,
    write_back,
)
from flashinfer_bench.routing.binding import _drop_object as drop_object
from flashinfer_bench.routing.routes import EXTRAS as CANONICAL_EXTRAS
from flashinfer_bench.routing.routes import Canonical, UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from flashinfer_bench.apply.apis import Bind
    from flashinfer_bench.apply.dispatch.layout import Operand
    from flashinfer_bench.data import Definition
    from flashinfer_bench.routing.patch_points import Args, Kwargs

    Takes = Optional[Mapping[str, bool]]
    """What a solution takes by name, and whether it needs it; None for anything."""

# Reasons for which a call goes to the original, beside those of the dispatcher.
ARGUMENTS = "arguments"  # they do not fit the signature: the original says what is wrong
ADAPTER = "adapter failed"
EXTRAS = "argument not in the definition"
BUFFER = "buffer"  # of another dtype or shape than the output, or one that a gradient is wanted of
PLACE = "no place for an output"
MORE_OUTPUTS = "more outputs than the definition has"

_HINTS = frozenset({"enable_pdl"})  # may change how quick a call is, and nothing else
_OUT = ("out", "output")
_LSE = "lse"
_FLAG = "return_"
_MANY = 64  # more outputs than any function has
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
_ANYTHING = (Exception,)
_CONTAINERS = (tuple, list, dict, type(None))


@dataclass(frozen=True)
class Convention:
    """What each argument of an API means for one definition.

    Parameters
    ----------
    api, definition : str
        Their names.
    binder : callable
        ``binder(args, kwargs)`` returns the arguments of a call by name, see `quick_binder`.
    inputs : dict of str to str
        What the solution calls each input, and the parameter.
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
    extras : str
        Reason of a call in which they do not.
    rest : tuple of str
        ``*args`` and ``**kwargs``.
    takes : mapping of str to bool, optional
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
    binder: Callable[[Args, Kwargs], Any]
    inputs: dict[str, str]
    outputs: Optional[tuple[Operand, ...]] = None
    in_place: dict[int, str] = field(default_factory=dict)
    buffers: dict[int, str] = field(default_factory=dict)
    out: Optional[tuple[str, tuple[int, ...]]] = None
    flags: tuple[tuple[Optional[int], str], ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    extras: str = EXTRAS
    rest: tuple[str, ...] = ()
    takes: Takes = None
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
                raise UnroutableError(self.extras)
        inputs = {name: values[parameter] for name, parameter in self.inputs.items()}
        for name in self.rest:
            if further := values.get(name):
                inputs.update(self._known(further))
        buffers = self._places(values) if self.in_place or self.buffers or self.out else {}
        return Bound(inputs, buffers, self._wanted(values) if self.flags else self.returned)

    def _known(self, further: Any) -> dict[str, Any]:
        """Return what ``**kwargs`` adds: only without a definition may there be anything."""
        known = self.outputs is None and isinstance(further, dict)
        if not known or (self.takes is not None and not further.keys() <= self.takes.keys()):
            raise UnroutableError(EXTRAS)
        return dict(further)

    def usual_call(self, signature: Signature) -> Optional[tuple[int, tuple[Any, ...]]]:
        """Return how the usual call can be told without looking at each argument, if it can.

        It has all inputs in front, leaves the rest alone, and wants the only output.

        Returns
        -------
        (int, tuple) or None
            How many inputs there are, and what is behind them by default.
        """
        parameters, count = signature.parameters, len(self.inputs)
        in_order = list(parameters)[:count] == [*self.inputs.values()]
        if not in_order or not {each.kind for each in parameters.values()} <= _BY_POSITION:
            return None
        if self.in_place or self.flags or not self._passes_through(self.returned, object):
            return None
        return count, tuple(each.default for each in parameters.values())[count:]

    def _places(self, values: Mapping[str, Any]) -> dict[int, Any]:
        found = {index: values[name] for index, name in self.buffers.items()}
        if self.out is not None:
            name, targets = self.out
            given = values[name]
            several = given if isinstance(given, (tuple, list)) else [given]
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
        if self.outputs is None:
            return
        operand = self.outputs[index]
        wanted = [self._size(size, values) for size in operand.shape or ()]
        given = [getattr(values[parameter], "device", None) for parameter in self.inputs.values()]
        if (
            buffer.dtype != operand.dtype
            or buffer.dim() != len(wanted)
            or any(device not in (None, buffer.device) for device in given)
            or any(one not in (None, size) for one, size in zip(wanted, buffer.shape, strict=True))
        ):
            raise UnroutableError(BUFFER)

    def _size(self, size: int | str, values: Mapping[str, Any]) -> Optional[int]:
        """Return how large an axis is in this call; None if no input tells."""
        if isinstance(size, int):
            return size
        parameter, dimension = self.axes.get(size, ("", 0))
        try:
            return int(values[parameter].shape[dimension])
        except _ANYTHING:  # nested tensors have no shape, nor has what is no tensor
            return None

    def _wanted(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        if any(index is None and values[name] for index, name in self.flags):
            raise UnroutableError(MORE_OUTPUTS)
        flags = {index: bool(values[name]) for index, name in self.flags if index is not None}
        chosen = self.returned
        if chosen is None:
            chosen = (0, *(index for index, wanted in flags.items() if wanted))
        return tuple(index for index in chosen if flags.get(index, True))

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
        if not buffers and self._passes_through(wanted, type(result)):
            return result
        results, names = self._listed(result)
        wanted = tuple(range(len(results))) if wanted is None else wanted
        least = 1 + max((*wanted, *buffers), default=-1)
        if len(results) < least:
            raise self._error(f"got {len(results)} outputs, but the call wants {least}")
        if self.returns.kind == "none" and self.outputs is None and len(results) > len(buffers):
            raise self._error(
                f"got {len(results)} outputs for {len(buffers)} buffers, and it returns None",
                hint="have the solution write into its inputs and return None, or give the "
                "definition, whose outputs name by `param` the inputs that they are written into",
            )
        for index, buffer in buffers.items():
            is_number = isinstance(results[index], (bool, int, float)) and buffer.dim() == 0
            found, expected = _description(results[index]), _description(buffer)
            if not is_number and found != expected:
                name = repr(self.outputs[index].name) if self.outputs is not None else str(index)
                raise self._error(f"output {name} is {found}, but goes into {expected}")
        write_back(results, buffers)
        return self.returns.wrap(
            [buffers.get(index, results[index]) for index in wanted],
            [names[index] for index in wanted],
        )

    def _passes_through(self, wanted: Optional[tuple[int, ...]], kind: type) -> bool:
        """Return whether a call that wants these outputs returns what the solution returned."""
        if self.returns.kind not in ("any", "one"):
            return False
        if wanted is None:
            return self.returns.kind == "any"
        alone = self.outputs is not None and len(self.outputs) == 1
        return alone and wanted == (0,) and kind not in _CONTAINERS

    def _listed(self, result: Any) -> tuple[list[Any], list[str]]:
        from flashinfer_bench.compile import list_outputs

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

    def _error(self, problem: str, *, hint: str = "") -> DataError:
        return DataError(
            f"API {self.api}: solution of definition '{self.definition}': {problem}",
            hint=hint or "correct the solution, or take the definition out of the mapping",
        )


class AdapterConvention(Convention):
    """For an API that tells the arguments of its calls apart: the binder returns a `Bound`."""

    def bind(self, args: Args, kwargs: Kwargs) -> Bound:
        """Ask the adapter; what fails in it goes to the original, and is logged once."""
        try:
            bound: Bound = self.binder(args, kwargs)
            return bound
        except UnroutableError:
            raise
        except _ANYTHING as error:  # the call itself may be fine
            message = f"API {self.api}: a call cannot be told apart; such calls go to the original"
            tell_once(message, error)
            raise UnroutableError(ADAPTER) from error


def _description(value: Any) -> str:
    try:
        return f"{list(value.shape)} of {value.dtype} on {value.device}"
    except _ANYTHING:  # no tensor, or a nested one
        return f"a {type(value).__name__}"


# ------------------------------------------------------------------------------ working it out


def convention(
    api: str,
    signature: Optional[Signature],
    name: str,
    definition: Optional[Definition] = None,
    *,
    bind: Optional[Bind] = None,
    takes: Takes = None,
    original: Optional[Callable[..., Any]] = None,
) -> Convention:
    """Work out what the arguments of an API mean.

    Parameters
    ----------
    api : str
        What people call it.
    signature : inspect.Signature, optional
        Without it, its arguments are those of the definition.
    name : str
        The definition.
    definition : Definition, optional
        If it is known.
    bind : callable, optional
        What tells the arguments apart instead; see `apis.Api`.
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
    annotation = Signature.empty if signature is None else signature.return_annotation
    returns = returns_of(Any if annotation is Signature.empty else annotation, original)
    if bind is not None:
        return AdapterConvention(
            api,
            name,
            lambda args, kwargs: bind(args, kwargs or {}, definition),
            {},
            outputs=None if definition is None else _layout(definition).outputs,
            returns=returns,
        )
    if signature is None:
        assert definition is not None
        kind = Parameter.POSITIONAL_OR_KEYWORD
        signature = Signature([Parameter(name, kind) for name in definition.inputs])
    try:
        if definition is not None:
            return _with_definition(api, signature, definition, returns)
        return _by_name(api, signature, name, takes, returns)
    except ConfigError as error:
        raise ConfigError(
            f"API {api} cannot be routed to definition '{name}': {error.message}",
            hint=error.hint,
        ) from None


def _layout(definition: Definition) -> Any:
    from flashinfer_bench.apply.dispatch.layout import Layout

    return Layout.of(definition)


def _told_apart(
    signature: Signature,
    inputs: Collection[str],
    outputs: dict[str, int],
    *,
    forced_out: bool = False,
) -> tuple[Signature, dict[int, str], Optional[str], list[str]]:
    """Tell parameters apart by their names: inputs, buffers by output, the one for any, flags.

    An input is one, whatever its name.
    """
    left, buffers, flags = [], {}, []
    out: Optional[str] = None
    for name, parameter in signature.parameters.items():
        if name in inputs or parameter.kind in _VARIABLE or isinstance(signature, Canonical):
            left.append(parameter)
        elif name in outputs:
            buffers[outputs[name]] = name
        elif name in _OUT and out is None and (forced_out or parameter.default is None):
            out = name
        elif name.startswith(_FLAG) and isinstance(parameter.default, bool):
            flags.append(name)
        elif name not in _HINTS:
            left.append(parameter)
    return Signature(left), buffers, out, flags


def _with_definition(
    api: str, signature: Signature, definition: Definition, returns: Returns
) -> Convention:
    layout, outputs = _layout(definition), list(definition.outputs)
    # What the API calls each input: its `param`, if there is such a parameter.
    called = {
        name: spec.param if spec.param and spec.param in signature.parameters else name
        for name, spec in definition.inputs.items()
    }
    written = _written(definition, called)
    free = {name: index for index, name in enumerate(outputs) if index not in written}
    inputs, buffers, out, flags = _told_apart(signature, set(called.values()), free)
    targets = tuple(index for index in free.values() if index not in buffers)
    passed = [outputs[index] for index in targets] if out is None else []
    binding = match(inputs, list(called.values()), passed)
    parameters = dict(zip(called, binding.inputs, strict=True))
    buffers |= dict(zip(targets, binding.outputs, strict=False))
    in_place = {index: parameters[name] for index, name in written.items()}
    forced = bool(buffers) and all(
        signature.parameters[name].default is Parameter.empty for name in buffers.values()
    )
    return Convention(
        api,
        definition.name,
        quick_binder(signature),
        parameters,
        outputs=layout.outputs,
        axes={axis: (binding.inputs[index], where) for axis, index, where in layout.places},
        in_place=in_place,
        buffers=buffers,
        out=None if out is None else (out, targets),
        flags=tuple((_flagged(name, outputs, flags), name) for name in flags),
        defaults={name: inputs.parameters[name].default for name in binding.extras},
        rest=binding.rest,
        returns=returns,
        returned=_returned(returns, len(outputs), in_place, none=forced),
    )


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


def _flagged(flag: str, outputs: list[str], flags: list[str]) -> Optional[int]:
    """Return the output that a flag has returned."""
    name = flag.removeprefix(_FLAG)
    if name in outputs:
        return outputs.index(name)
    alone = len(outputs) > 1 and len(flags) == 1
    return len(outputs) - 1 if alone else None


def _returned(
    returns: Returns, outputs: int, in_place: dict[int, str], *, none: bool
) -> tuple[int, ...]:
    """Return which outputs a call returns."""
    every = tuple(range(outputs))
    fresh = tuple(index for index in every if index not in in_place)
    if returns.number is None:
        return () if none else fresh
    if returns.number > outputs:
        raise ConfigError(
            f"it returns {returns.number} outputs, and the definition has {outputs}",
        )
    chosen = fresh if returns.number <= len(fresh) else every
    return chosen[: returns.number]


def _by_name(
    api: str, signature: Signature, name: str, takes: Takes, returns: Returns
) -> Convention:
    parameters = signature.parameters
    own = parameters.keys() & (takes or {}).keys()
    # Nothing else says which output of a library is called how.
    left, buffers, out, flags = _told_apart(
        signature, own & {*_OUT, _LSE}, {_LSE: 1}, forced_out=True
    )
    inputs, defaults = _taken(left, takes)
    inputs.update((each, each) for each in (*_HINTS, *flags) if each in own)
    forced = out is not None and parameters[out].default is Parameter.empty
    counted = None if returns.number is None else tuple(range(returns.number))
    free = tuple(index for index in range(_MANY) if index not in buffers)
    return Convention(
        api,
        name,
        quick_binder(signature),
        inputs,
        buffers=buffers,
        out=None if out is None else (out, free),
        flags=tuple((index + 1, flag) for index, flag in enumerate(flags)),
        defaults=defaults,
        extras=CANONICAL_EXTRAS if isinstance(signature, Canonical) else EXTRAS,
        rest=tuple(name for name, each in parameters.items() if each.kind in _VARIABLE),
        takes=takes,
        returns=returns,
        returned=() if forced and counted is None else counted,
    )


def _taken(signature: Signature, takes: Takes) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the parameter for each input of the solution, and the defaults of the others.

    By name, or, where the solution has other names, by position as for a definition.
    """
    named = {
        name: each for name, each in signature.parameters.items() if each.kind not in _VARIABLE
    }
    drop_object(named, set(takes or ()))
    taken = {name: name for name in named if takes is None or name in takes}
    lacking = {name: each.default for name, each in named.items() if name not in taken}
    if takes is None or Parameter.empty not in lacking.values():
        return taken, lacking
    needed = [name for name, needs in takes.items() if needs]
    try:
        binding = match(signature, needed, ())
    except ConfigError as error:
        hint = "name its parameters as the API does, or give the definition"
        raise ConfigError(f"the solution takes {', '.join(takes)}: {error}", hint=hint) from None
    taken = dict(zip(needed, binding.inputs, strict=True))
    taken.update((name, name) for name in binding.extras if name in takes)
    rest = {name: named[name].default for name in binding.extras if name not in takes}
    return taken, rest
