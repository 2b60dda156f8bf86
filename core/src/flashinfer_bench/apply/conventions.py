"""What each argument of a library's function means for a definition.

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

from dataclasses import replace
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.apply.apis import UnroutableError, quick_binder
from flashinfer_bench.apply.reconcile import ARGUMENTS, Convention
from flashinfer_bench.apply.returns import returns_of
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.binding import _drop_object as drop_object
from flashinfer_bench.integration.binding import match, same_value
from flashinfer_bench.integration.canonical import EXTRAS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from flashinfer_bench.apply.apis import Api
    from flashinfer_bench.apply.returns import Returns
    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.canonical import Canonical
    from flashinfer_bench.integration.slots import Args, Kwargs

_OUT = ("out", "output")
_LSE = "lse"
_FLAG = "return_"
_MANY = 64  # more outputs than any function has
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def convention(
    api: Api,
    name: str,
    definition: Optional[Definition] = None,
    *,
    takes: Optional[Mapping[str, bool]] = None,
    original: Optional[Callable[..., Any]] = None,
) -> Convention:
    """Work out what the arguments of an API mean.

    Parameters
    ----------
    api : Api
        Without a signature its arguments are those of the definition.
    name : str
        The definition.
    definition : Definition, optional
        If it is known.
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
    if api.signature is None:  # its arguments are those of the definition
        assert definition is not None
        api = replace(api, signature=_signature_of(definition))
    returns = returns_of(_annotation(api), original)
    try:
        if definition is not None:
            return _with_definition(api, definition, returns)
        return _by_name(api, name, takes, returns)
    except ConfigError as error:
        raise ConfigError(
            f"API {api.name} cannot be routed to definition '{name}': {error.message}",
            hint=error.hint,
        ) from None


def canonical(
    function: Callable[..., Any], signature: Canonical, takes: Optional[Mapping[str, bool]]
) -> Callable[[Args, Kwargs], Any]:
    """Return what calls a function with what it takes of canonical arguments.

    Parameters
    ----------
    function : callable
        A solution whose definition is not known.
    signature : Canonical
        Names the arguments.
    takes : mapping of str to bool, optional
        As of `convention`.

    Raises
    ------
    ConfigError
        If it needs something else.
    """
    taken, lacking = _taken(signature, takes)
    parameters = list(signature.parameters)
    passed = [(name, parameters.index(parameter)) for name, parameter in taken.items()]
    extras = [(parameters.index(name), default) for name, default in lacking.items()]

    def take(args: Args, _kwargs: Kwargs) -> Any:
        if not all(same_value(args[position], default) for position, default in extras):
            raise UnroutableError(EXTRAS)
        return function(**{name: args[position] for name, position in passed})

    return take


def _signature_of(definition: Definition) -> Signature:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature([Parameter(name, kind) for name in definition.inputs])


def unsigned(
    api: Api,
    name: str,
    definition: Optional[Definition] = None,
    original: Optional[Callable[..., Any]] = None,
) -> Convention:
    """Work out what outputs mean for an API that tells the arguments of its calls apart itself.

    Parameters
    ----------
    api, name, definition, original
        As of `convention`; a signature is not needed.
    """
    from flashinfer_bench.apply.dispatch.layout import Layout

    outputs = None if definition is None else Layout.of(definition).outputs
    returns = returns_of(_annotation(api), original)
    return Convention(api.name, name, _unbound, (), outputs=outputs, returns=returns)


def _unbound(args: Args, kwargs: Kwargs) -> dict[str, Any]:
    raise UnroutableError(ARGUMENTS)


def _annotation(api: Api) -> Any:
    given = api.returns
    if given is Signature.empty and api.signature is not None:
        given = api.signature.return_annotation
    return Any if given is Signature.empty else given


class _Parameters(NamedTuple):
    """The parameters of an API, by what they are.

    Attributes
    ----------
    inputs : Signature
        Those that may be inputs, and ``*args`` and ``**kwargs``.
    buffers : dict of int to str
        Those named like outputs.
    out : str or None
        The one that takes any outputs.
    flags : list of str
        Those that say what is returned.
    """

    inputs: Signature
    buffers: dict[int, str]
    out: Optional[str]
    flags: list[str]


def _sorted(
    api: Api, inputs: Collection[str], outputs: dict[str, int], *, forced_out: bool = False
) -> _Parameters:
    """Tell the parameters apart by their names; an input is one, whatever its name."""
    assert api.signature is not None
    left, buffers, flags = [], {}, []
    out: Optional[str] = None
    for name, parameter in api.signature.parameters.items():
        if name in inputs or parameter.kind in _VARIABLE:
            left.append(parameter)
        elif name in outputs:
            buffers[outputs[name]] = name
        elif name in _OUT and out is None and (forced_out or parameter.default is None):
            out = name
        elif name.startswith(_FLAG) and isinstance(parameter.default, bool):
            flags.append(name)
        elif name not in api.hints:
            left.append(parameter)
    return _Parameters(Signature(left), buffers, out, flags)


def _with_definition(api: Api, definition: Definition, returns: Returns) -> Convention:
    from flashinfer_bench.apply.dispatch.layout import Layout

    assert api.signature is not None
    layout = Layout.of(definition)
    outputs = list(definition.outputs)
    called = _called(definition, api.signature)
    written = _written(definition, called)
    free = {name: index for index, name in enumerate(outputs) if index not in written}
    sorted_ = _sorted(api, set(called.values()), free)
    targets = tuple(index for index in free.values() if index not in sorted_.buffers)
    passed = [outputs[index] for index in targets] if sorted_.out is None else []
    binding = match(sorted_.inputs, list(called.values()), passed)
    parameters = dict(zip(called, binding.inputs, strict=True))
    buffers = {**sorted_.buffers, **dict(zip(targets, binding.outputs, strict=False))}
    in_place = {index: parameters[name] for index, name in written.items()}
    forced = bool(buffers) and all(
        api.signature.parameters[name].default is Parameter.empty for name in buffers.values()
    )
    return Convention(
        api.name,
        definition.name,
        quick_binder(api.signature),
        inputs=tuple(parameters.items()),
        positional=_positional(api.signature),
        outputs=layout.outputs,
        axes={axis: (binding.inputs[index], where) for axis, index, where in layout.places},
        in_place=in_place,
        buffers=buffers,
        out=None if sorted_.out is None else (sorted_.out, targets),
        flags=tuple((_flagged(name, outputs, sorted_.flags), name) for name in sorted_.flags),
        defaults={name: sorted_.inputs.parameters[name].default for name in binding.extras},
        rest=binding.rest,
        returns=returns,
        returned=_returned(returns, len(outputs), in_place, none=forced),
    )


def _positional(signature: Signature) -> tuple[str, ...]:
    kinds = {each.kind for each in signature.parameters.values()}
    by_position = kinds <= {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    return tuple(signature.parameters) if by_position else ()


def _called(definition: Definition, signature: Signature) -> dict[str, str]:
    """Return what the API calls each input: its `param`, if there is such a parameter."""
    called = {}
    for name, spec in definition.inputs.items():
        known = spec.param is not None and spec.param in signature.parameters
        called[name] = spec.param if known and spec.param else name
    return called


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
    api: Api, name: str, takes: Optional[Mapping[str, bool]], returns: Returns
) -> Convention:
    assert api.signature is not None
    parameters = api.signature.parameters
    own = parameters.keys() & (takes or {}).keys()
    # Nothing else says which output of a library is called how.
    sorted_ = _sorted(api, own & {*_OUT, _LSE}, {_LSE: 1}, forced_out=True)
    inputs, defaults = _taken(sorted_.inputs, takes)
    inputs.update((each, each) for each in (*api.hints, *sorted_.flags) if each in own)
    out = sorted_.out
    forced = out is not None and parameters[out].default is Parameter.empty
    counted = None if returns.number is None else tuple(range(returns.number))
    free = tuple(index for index in range(_MANY) if index not in sorted_.buffers)
    return Convention(
        api.name,
        name,
        quick_binder(api.signature),
        inputs=tuple(inputs.items()),
        buffers=sorted_.buffers,
        out=None if out is None else (out, free),
        flags=tuple((index + 1, flag) for index, flag in enumerate(sorted_.flags)),
        defaults=defaults,
        rest=tuple(name for name, each in parameters.items() if each.kind in _VARIABLE),
        takes=None if takes is None else frozenset(takes),
        returns=returns,
        returned=() if forced and counted is None else counted,
    )


def _taken(
    signature: Signature, takes: Optional[Mapping[str, bool]]
) -> tuple[dict[str, str], dict[str, Any]]:
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
