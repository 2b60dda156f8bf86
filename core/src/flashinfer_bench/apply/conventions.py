"""Map the arguments of a function to a definition, and deliver outputs.

A solution takes the inputs of a definition and returns its outputs. A library function may have
more: ``out=`` and ``lse=`` buffers, inputs that it modifies in place, a flag such as ``return_lse``
that decides how much it returns, and arguments that no definition has. The mapping is computed
once, from the signature:

- An output whose `param` names an input is written back to that input.
- A parameter with the name of an output takes a buffer for it. ``out`` and ``output`` take a buffer
  for the first output that has no other destination, or a tuple of buffers. Without a definition,
  ``lse`` takes a buffer for the second output.
- ``return_x`` decides whether output ``x`` is returned; if no output has that name, it applies to
  the last one.
- Hints, such as ``enable_pdl``, have no effect on the result.
- All other parameters are inputs, matched as for a decorated function (`match`). The rest
  must have their default values, or the call does not match the definition.

A call returns what the annotation specifies. Without an annotation it returns all outputs that are
not written in place, or None if there are none or if the buffers are required. If the caller
provides a buffer, that same object is returned.

`bind` turns this mapping into a callable for the function's calls, for datasets and mappings alike.
Generated code handles the usual call, which has only inputs.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.errors import ConfigError, DataError
from flashinfer_bench.routing import binding
from flashinfer_bench.routing.patch_manager import UnroutableError
from flashinfer_bench.routing.patch_points import opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from flashinfer_bench.apply.dispatch import Dispatcher
    from flashinfer_bench.apply.dispatch.layout import Layout
    from flashinfer_bench.data import Definition
    from flashinfer_bench.routing.patch_points import Args, Call, Fallback, Kwargs

    Takes = Optional[Mapping[str, bool]]
    """Parameter names of a solution, and whether each is required; None accepts anything."""

# Reasons for sending a call to the original, in addition to those of the dispatcher.
ARGUMENTS = "arguments"  # they do not match the signature: the original reports the error
EXTRAS = "argument not in the definition"
BUFFER = "buffer"  # dtype or shape differs from the output, or it requires a gradient
PLACE = "no place for an output"
MORE_OUTPUTS = "more outputs than the definition has"

_HINTS = frozenset({"enable_pdl"})  # may change the speed of a call, but nothing else
_OUT = ("out", "output")
_LSE = "lse"
_FLAG = "return_"
_CONTAINERS = (tuple, list, dict, type(None))


class Bound(NamedTuple):
    """The arguments of one call, by purpose.

    Attributes
    ----------
    inputs : dict of str to Any
        By their names in the solution, in the order of the definition if there is one.
    buffers : dict of int to tensor
        Destination of outputs, by position in the definition: buffers passed in, or inputs that are
        modified in place.
    returned : tuple of int, optional
        Indices of the outputs that the call returns; None for all.
    """

    inputs: dict[str, Any]
    buffers: dict[int, Any]
    returned: Optional[tuple[int, ...]]


class Convention:
    """The meaning of each argument of a function for one definition.

    Parameters
    ----------
    label : str
        Display name of the function.
    signature : inspect.Signature
        Its parameters.
    name : str
        Name of the definition.
    layout : Layout, optional
        Layout of the definition, if known.
    takes : mapping of str to bool, optional
        Parameter names of the solution, and whether each is required, if there is no definition;
        None accepts anything.
    original : callable, optional
        The function itself, to resolve names in its annotation.

    Raises
    ------
    ConfigError
        If the signature cannot match the definition, or the solution.
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
        self._binder = binding.quick_binder(signature)
        self._layout = layout
        self._takes = takes
        self._returns = binding.returns_of(
            Any if annotation is Signature.empty else annotation, original
        )
        # Parameters by purpose: inputs by their names in the solution, outputs by position.
        self._buffers: dict[int, str] = {}
        self._out = ""  # takes a buffer, or a tuple of them, for the remaining outputs
        self._flags: list[str] = []
        try:
            if layout is None:
                outputs, written = ["", _LSE], {}
                left = self._tell_apart(set(takes or ()), outputs)
                called = {each: each for each in self._taken(left)}
            else:
                of, outputs = layout.definition, list(layout.definition.outputs)
                # Name of each input in the function: its `param`, if that is a parameter.
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

    # -------------------------------------------------------------------------------- preparation

    def _tell_apart(self, inputs: Collection[str], outputs: list[str]) -> Signature:
        """Find buffers and flags by name; return the other parameters.

        An input is never treated as a buffer or flag, whatever its name.
        """
        left = []
        for name, parameter in self._signature.parameters.items():
            is_input = name in inputs or isinstance(self._signature, binding.Canonical)
            if is_input or parameter.kind in binding.VARIABLE:
                left.append(parameter)
            elif name in outputs:
                self._buffers[outputs.index(name)] = name
            # Without a definition nothing else relates names to the outputs of a library.
            elif name in _OUT and not self._out and (not self._layout or parameter.default is None):
                self._out = name
            elif name.startswith(_FLAG) and isinstance(parameter.default, bool):
                self._flags.append(name)
            elif name not in _HINTS:
                left.append(parameter)
        return Signature(left)

    def _taken(self, left: Signature) -> list[str]:
        """Return the inputs of a solution whose definition is unknown."""
        named = {
            name: each
            for name, each in left.parameters.items()
            if each.kind not in binding.VARIABLE
        }
        takes = self._takes
        binding.drop_object(named, set(takes or ()))
        if takes is None:
            return list(named)
        # If the API has other required names, match by position, as for a definition.
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
        """Match the parameters with inputs, by their names in the function, and outputs."""
        parameters, known = self._signature.parameters, self._layout is not None
        every = range(len(outputs))
        self._targets = tuple(i for i in every if i not in written and i not in self._buffers)
        passed = [outputs[index] for index in self._targets] if known and not self._out else []
        found = binding.match(left, list(called.values()), passed)
        self._rest = found.rest
        self._inputs = dict(zip(called, found.inputs, strict=True))
        self._buffers |= dict(zip(self._targets, found.outputs, strict=False))
        self._in_place = {index: self._inputs[name] for index, name in written.items()}
        # Default values of parameters that must have them.
        self._defaults = {name: parameters[name].default for name in found.extras}
        last = len(outputs) - 1 if len(outputs) > 1 and len(self._flags) == 1 else None
        names = {flag: flag.removeprefix(_FLAG) for flag in self._flags}
        # None marks an output that the definition lacks.
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

    @property
    def is_plain(self) -> bool:
        """Whether calls give all inputs, and any outputs, in order and nothing else."""
        parameters = self._signature.parameters
        passed = [*self._inputs.values(), *dict(sorted(self._buffers.items())).values()]
        required = all(parameters[n].default is Parameter.empty for n in self._buffers.values())
        required &= all(each.kind in binding.BY_POSITION for each in parameters.values())
        if [*parameters] != passed or self._in_place or not required:
            return False
        return self.is_whole(self._returned) if not self._buffers else self._returned == ()

    def is_whole(self, wanted: Optional[tuple[int, ...]]) -> bool:
        """Return whether these are all outputs, in the form that a dispatcher returns."""
        count = 0 if self._layout is None else len(self._layout.outputs)
        kinds = {0: ("any", "none"), 1: ("any", "one")}.get(count, ("any", "tuple"))
        whole = self._layout is not None and wanted == tuple(range(count))
        return whole and self._returns.kind in kinds and self._returns.make is None

    def usual(self, call: Call, missed: Callable[..., Any], examine: Call) -> Call:
        """Return a callable that handles the usual call quickly and has any other call examined.

        The usual call gives inputs, and receives all outputs, returned or in their own buffers.

        Parameters
        ----------
        call : callable
            Takes the inputs, or inputs and outputs.
        missed : callable
            Takes the reason and a call with arguments that the definition does not cover.
        examine : callable
            Takes any call.
        """
        parameters = self._signature.parameters
        places = [*self._buffers.values(), *filter(None, [self._out])]
        idle = {name: parameters[name].default for name in (*places, *self._flags)}
        if self._in_place or any(idle[name] is not None for name in places):
            return examine
        try:
            if not self.is_whole(self._wanted(idle)):
                return examine
        except UnroutableError:
            return examine
        further = [*self._rest] + [
            f"{name} is not _fib_of_{name} and not _fib_same({name}, _fib_of_{name})"
            for name in self._defaults
        ]
        body, passed = _unpacking(self._signature), "_fib_args, _fib_kwargs, _fib_fallback"
        if further:
            body.append(f"if {' or '.join(further)}: return _fib_missed({EXTRAS!r}, {passed})")
        body += [
            "_fib_answers = []",
            "def _fib_again(*_fib_inputs):",
            "    _fib_answers.append(_fib_fallback(*_fib_args, **(_fib_kwargs or {})))",
            "    return _fib_answers[0]",
        ]
        inputs, outputs = self._inputs.values(), dict(sorted(self._buffers.items())).values()
        into = outputs and len(outputs) == len(idle) and self._layout and not self._targets
        if into:
            everything = binding.tuple_of((*inputs, *outputs))
            returned = next(iter(outputs)) if len(outputs) == 1 else binding.tuple_of(outputs)
            body += [
                f"if {' and '.join(f'{name} is not None' for name in outputs)}:",
                f"    _fib_result = _fib_call({everything}, None, _fib_again)",
                "    if _fib_answers or _fib_result is not None: return _fib_result",
                f"    return {returned}",
            ]
        if idle and not (into and len(idle) == 1):  # otherwise it has its default value here
            examined = " or ".join(f"{name} is not _fib_of_{name}" for name in idle)
            body.append(f"if {examined}: return _fib_examine({passed})")
        body.append(f"return _fib_call({binding.tuple_of(inputs)}, None, _fib_again)")
        defaults = {**idle, **self._defaults}
        lines = [
            "def make(_fib_call, _fib_missed, _fib_examine, _fib_defaults, _fib_same):",
            *(f"    _fib_of_{name} = _fib_defaults[{name!r}]" for name in defaults),
            "    def bound(_fib_args, _fib_kwargs, _fib_fallback):",
            *(f"        {line}" for line in body),
            "    return bound\n",
        ]
        make = binding.compile_source("\n".join(lines))
        made: Call = make(call, missed, examine, defaults, binding.same_value)
        return opaque(made)

    # ---------------------------------------------------------------------------- arguments

    def bind(self, args: Args, kwargs: Kwargs) -> Bound:
        """Sort the arguments of a call by purpose.

        Raises
        ------
        UnroutableError
            If the call does not match the definition.
        """
        values = self._binder(args, kwargs)
        for name, default in self._defaults.items():
            if not binding.same_value(values[name], default):
                raise UnroutableError(EXTRAS)
        inputs = {name: values[parameter] for name, parameter in self._inputs.items()}
        for name in self._rest:
            further = values.get(name)
            if not further:
                continue
            # ``**kwargs`` may contain something only if there is no definition.
            known = self._layout is None and isinstance(further, dict)
            if not known or (self._takes is not None and not further.keys() <= self._takes.keys()):
                raise UnroutableError(EXTRAS)
            inputs |= further
        return Bound(inputs, self._places(values), self._wanted(values))

    def _places(self, values: Mapping[str, Any]) -> dict[int, Any]:
        found = {index: values[name] for index, name in self._buffers.items()}
        if self._out:
            given = values[self._out]
            several = given if isinstance(given, (tuple, list)) else [given]
            if len(several) > len(self._targets):
                raise UnroutableError(PLACE)
            found.update(zip(self._targets, several, strict=False))
        found = {index: buffer for index, buffer in found.items() if buffer is not None}
        found.update((index, values[name]) for index, name in self._in_place.items())
        return dict(sorted(found.items()))

    def require_places(self, bound: Bound) -> None:
        """Reject buffers that match no output of the definition.

        Raises
        ------
        UnroutableError
            If a buffer does not match.
        """
        import torch

        buffers, inputs = bound.buffers, list(bound.inputs.values())
        sizes: dict[str, int] = {}
        for index, buffer in buffers.items():
            if not isinstance(buffer, torch.Tensor):
                raise UnroutableError(PLACE)
            odd = buffer.is_nested or buffer.layout is not torch.strided
            odd = odd or (buffer.is_inference() and not torch.is_inference_mode_enabled())
            # Elements that share memory, as in an expanded tensor.
            odd = odd or any(
                stride == 0 and size > 1
                for stride, size in zip(buffer.stride(), buffer.shape, strict=True)
            )
            if odd or (buffer.requires_grad and torch.is_grad_enabled()):
                raise UnroutableError(BUFFER)
            if self._layout is None:
                continue
            operand = self._layout.outputs[index]
            try:
                sizes = sizes or self._layout.sizes(inputs)
            except Exception:  # noqa: BLE001 - nested tensors and other objects have no shape
                return  # the guards reject the call
            wanted = [sizes.get(str(size), size) for size in operand.shape or ()]
            fits = buffer.dtype == operand.dtype and buffer.dim() == len(wanted)
            # The size of an axis that no input has is unknown.
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

    def written(self, bound: Bound) -> Any:
        """Return what the function would return, once all outputs are in their buffers."""
        wanted = bound.returned or ()
        names = [self._layout.outputs[index].name for index in wanted] if self._layout else []
        return self._returns.wrap([bound.buffers[index] for index in wanted], names)

    def deliver(self, bound: Bound, result: Any) -> Any:
        """Deliver outputs as the call requires, and return what the function would return.

        All outputs are checked before the first one is written.

        Parameters
        ----------
        bound : Bound
            The call.
        result : Any
            The solution's result: an output, a tuple, list or dict of outputs, or None.

        Raises
        ------
        DataError
            If the outputs do not match the call in number, shape, dtype or device.
        """
        wanted, buffers = bound.returned, bound.buffers
        if not buffers and self._passes_through(wanted, type(result)):
            return result
        results, names = self._listed(result)
        wanted = tuple(range(len(results))) if wanted is None else wanted
        least = 1 + max((*wanted, *buffers), default=-1)
        if len(results) < least:
            raise self._error(f"got {len(results)} outputs, but the call expects {least}")
        if self._returns.kind == "none" and self._layout is None and len(results) > len(buffers):
            raise self._error(
                f"got {len(results)} outputs for {len(buffers)} buffers, and it returns None",
                hint="have the solution write into its inputs and return None, or give the "
                "definition, whose outputs name the inputs that they are written into (`param`)",
            )
        for index, buffer in buffers.items():
            is_number = isinstance(results[index], (bool, int, float)) and buffer.dim() == 0
            found, expected = _description(results[index]), _description(buffer)
            if not is_number and found != expected:
                name = index if self._layout is None else repr(names[index])
                raise self._error(f"output {name} is {found}, but goes into {expected}")
        binding.write_back(results, buffers)
        return self._returns.wrap(
            [buffers.get(index, results[index]) for index in wanted],
            [names[index] for index in wanted],
        )

    def _passes_through(self, wanted: Optional[tuple[int, ...]], kind: type) -> bool:
        """Return whether the call returns exactly what the solution returned."""
        if self._returns.kind not in ("any", "one"):
            return False
        if wanted is None:
            return self._returns.kind == "any"
        alone = wanted == (0,) and self.is_whole(wanted)
        return alone and kind not in _CONTAINERS

    def _listed(self, result: Any) -> tuple[list[Any], list[str]]:
        from flashinfer_bench.compile import list_outputs

        results = list_outputs(result, None)
        if self._layout is not None:  # the dispatcher has checked them
            return results, [operand.name for operand in self._layout.outputs]
        if isinstance(result, dict):
            return results, [str(name) for name in result]
        if self._returns.kind == "dict":
            raise self._error(f"got a {type(result).__name__}, but the API returns a dict")
        return results, [str(index) for index in range(len(results))]

    def _error(self, problem: str, *, hint: str = "") -> DataError:
        return DataError(
            f"{self._where}: {problem}",
            hint=hint or "correct the solution, or remove the definition from the mapping",
        )


def _description(value: Any) -> str:
    try:
        return f"{list(value.shape)} of {value.dtype} on {value.device}"
    except Exception:  # noqa: BLE001 - not a tensor, or a nested one
        return f"a {type(value).__name__}"


def _written(definition: Definition, called: dict[str, str]) -> dict[int, str]:
    """Return the declared input that each output is written back to."""
    found: dict[int, str] = {}
    by_parameter = {parameter: name for name, parameter in called.items()}
    for index, (output, spec) in enumerate(definition.outputs.items()):
        if spec.param is None:
            continue
        name = spec.param if spec.param in called else by_parameter.get(spec.param)
        if name is None:
            raise ConfigError(
                f"output '{output}' is written back into '{spec.param}', which is not an input",
                hint=f"inputs of the definition are {', '.join(called)}",
            )
        if name in found.values():
            raise ConfigError(f"two outputs are written back into '{spec.param}'")
        found[index] = name
    return found


def _unpacking(signature: Signature) -> list[str]:
    """Return source code that assigns each parameter's value to a variable of its name."""
    _, positional, _ = binding.passing(signature)
    lines = [] if positional == "()" else [f"{positional} = _fib_args"]
    by_name = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    named = [name for name, each in signature.parameters.items() if each.kind in by_name]
    return lines + [
        f"{name} = {binding.place_of(signature, name, binding.RESERVED)}" for name in named
    ]


# --------------------------------------------------------------------------------- function calls


def bind(
    dispatcher: Dispatcher, label: str, signature: Optional[Signature], original: Fallback = None
) -> Call:
    """Return a callable for the calls of a function that may match a dispatcher's definition.

    Parameters
    ----------
    dispatcher : Dispatcher
        Dispatcher of the definition. It counts calls that do not match as misses.
    label : str
        Display name of the function.
    signature : inspect.Signature, optional
        Its parameters. None: arguments follow the definition, and other calls are counted as
        misses.
    original : callable, optional
        The function itself, to resolve names in its annotation.

    Raises
    ------
    ConfigError
        If no call of the function can match the definition; the message says why.
    """
    layout, call = dispatcher.layout, opaque(dispatcher.call)
    inputs, outputs = list(layout.definition.inputs), list(layout.definition.outputs)
    if isinstance(signature, binding.Canonical):
        return binding.reordered(call, signature, inputs)

    @opaque
    def complete(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        given, named = len(args), kwargs or {}
        for names in ([*inputs, *outputs], inputs):
            if given + len(named) == len(names) and named.keys() == {*names[given:]}:
                return call(args, kwargs, fallback)
        return dispatcher.missed(ARGUMENTS, args, kwargs, fallback)

    if signature is None:
        return complete
    meaning = Convention(label, signature, layout.definition.name, layout, original=original)
    if meaning.is_plain:
        return call

    @opaque
    def examine(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        try:
            bound = meaning.bind(args, kwargs)
            mine, places = tuple(bound.inputs.values()), tuple(bound.buffers.values())
            # A call refused with these buffers may succeed without: retry and count it only once.
            into = 0 < len(places) == len(outputs) and dispatcher.accepts(*mine, *places)
            if places and not into:
                meaning.require_places(bound)
        except UnroutableError as error:
            return dispatcher.missed(error.reason, args, kwargs, fallback)
        original: Any = fallback
        answers: list[Any] = []

        def again(*_args: Any) -> Any:
            answers.append(original(*args, **(kwargs or {})))
            return answers[0]

        whole = into or (not places and meaning.is_whole(bound.returned))
        again.comparable = whole  # type: ignore[attr-defined]
        result = call((*mine, *places) if into else mine, None, again if fallback else None)
        if answers:
            return answers[0]
        return meaning.written(bound) if into else meaning.deliver(bound, result)

    return meaning.usual(call, dispatcher.missed, examine)
