"""From the arguments of a function to the inputs and outputs of a definition.

A decorated function need not look like its definition. What goes where is decided once, by names:

- A parameter named like an input or output is that. If all inputs have one, order does not matter.
- Other parameters that may be given by position are the input, or the output, at that position.
- What is left over is unknown to the definition: a call is described by it only while such
  parameters have their defaults. `self` and `cls` are let pass.

If outputs have defaults, a call that gives none of them returns its outputs, and one that gives all
of them has them written to and gets them back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing import generated
from flashinfer_bench.routing.patch_points import opaque

if TYPE_CHECKING:
    from collections.abc import Sequence
    from inspect import Signature

    from flashinfer_bench.data import Definition
    from flashinfer_bench.routing.patch_points import Call

_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Binding:
    """Which parameter is which input or output.

    Attributes
    ----------
    inputs : tuple of str
        The parameter for each input, in the order of the definition.
    outputs : tuple of str
        The parameter for each output; empty if the function takes none.
    may_lack : tuple of str
        Those of `outputs` that have a default.
    extras : tuple of str
        Parameters that the definition does not know, and that have a default.
    rest : tuple of str
        ``*args`` and ``**kwargs``, which the definition does not know either.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    may_lack: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    rest: tuple[str, ...] = field(default=())

    def is_plain(self, signature: Signature) -> bool:
        """Return whether all arguments by position are all inputs, and outputs, in order."""
        parameters = signature.parameters.values()
        in_order = tuple(each.name for each in parameters) == self.inputs + self.outputs
        return in_order and not self.may_lack and all(e.kind in _BY_POSITION for e in parameters)


def bind(call: Call, definition: Definition, signature: Optional[Signature]) -> Call:
    """Return `call` for the arguments of a function instead of those of its definition.

    Parameters
    ----------
    call : callable
        Takes inputs, or inputs and outputs, by position.
    definition : Definition
        Names them.
    signature : inspect.Signature, optional
        Of the function. None: its arguments are the definition's.

    Returns
    -------
    callable
        `call` itself if nothing has to be changed.

    Raises
    ------
    ConfigError
        If no call of the function can be one of the definition; the message says why.
    """
    if signature is None:
        return call
    binding = match(signature, list(definition.inputs), list(definition.outputs))
    if binding.is_plain(signature):
        return call
    defaults = {
        name: signature.parameters[name].default for name in (*binding.extras, *binding.may_lack)
    }
    make = generated.factory(_source(signature, binding))
    bound: Call = make(call, defaults, same_value)
    return opaque(bound)


def match(
    signature: Signature,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    by_position: bool = True,
) -> Binding:
    """Decide which parameter is which input or output.

    Parameters
    ----------
    signature : inspect.Signature
        Of the function.
    inputs, outputs : sequence of str
        Names that the definition gives.
    by_position : bool
        Whether a parameter of another name may be the input, or the output, at its position. Not
        where the names are those of definitions: another name is another thing there.

    Raises
    ------
    ConfigError
        If an input has no parameter, a parameter without a default no meaning, or names and
        positions contradict each other.
    """
    named = {
        name: each for name, each in signature.parameters.items() if each.kind not in _VARIABLE
    }
    _drop_object(named, {*inputs, *outputs})
    positional = [name for name, each in named.items() if each.kind in _BY_POSITION]
    taken = {name: name for name in (*inputs, *outputs) if name in named}
    if by_position and not all(name in taken for name in inputs):
        _take_positions(taken, named, positional, [*inputs, *outputs], len(inputs))
    missing = [name for name in inputs if name not in taken]
    if missing:
        raise ConfigError(f"no parameter is input '{missing[0]}'")
    passed = tuple(taken[name] for name in outputs if name in taken)
    if len(passed) < len(outputs):  # some of them are of no use
        passed = ()
    used = {*(taken[name] for name in inputs), *passed}
    extras = tuple(name for name in named if name not in used)
    unknown = [name for name in extras if named[name].default is Parameter.empty]
    if unknown:
        raise ConfigError(f"parameter '{unknown[0]}' is neither an input nor an output")
    return Binding(
        inputs=tuple(taken[name] for name in inputs),
        outputs=passed,
        may_lack=tuple(name for name in passed if named[name].default is not Parameter.empty),
        extras=extras,
        rest=tuple(each.name for each in signature.parameters.values() if each.kind in _VARIABLE),
    )


def _drop_object(named: dict[str, Parameter], known: set[str]) -> None:
    """Leave out the object that a method gets."""
    first = next(iter(named), None)
    if first in ("self", "cls") and first not in known:
        del named[first]


def _take_positions(
    taken: dict[str, str],
    named: dict[str, Parameter],
    positional: list[str],
    wanted: list[str],
    inputs: int,
) -> None:
    """Take parameters of other names by their position.

    An output has to be passed in each call for that: a parameter with a default may be anything.
    """
    for index, name in enumerate(positional):
        if name in taken:
            if wanted.index(name) != index:
                raise ConfigError(
                    f"parameter '{name}' is at position {index}, but '{name}' of the definition "
                    f"at {wanted.index(name)}, and not all inputs have a parameter of their name"
                )
            continue
        passed = index < inputs or named[name].default is Parameter.empty
        if passed and index < len(wanted) and wanted[index] not in taken:
            taken[wanted[index]] = name


def same_value(value: Any, default: Any) -> bool:
    """Return whether an argument is the default, or a plain value equal to it."""
    plain = type(default) in (bool, int, float, str, bytes)
    return value is default or (plain and type(value) is type(default) and bool(value == default))


# ------------------------------------------------------------------------------ generated code


def _source(signature: Signature, binding: Binding) -> str:
    """Return the source of a function that takes the arguments apart and puts them in order.

    The fallback may be asked with other inputs than those of the call, such as copies of them: it
    gets these in their places, and everything else as it was.
    """
    lacking = binding.may_lack
    body = _unpacking(signature)
    again = generated.argument_list(signature)
    give_up = ["    return _fib_fallback(*_fib_args, **(_fib_kwargs or {}))"]
    # What the definition does not describe.
    unknown = [*binding.rest, *(f"not _fib_same({n}, _fib_of_{n})" for n in binding.extras)]
    if unknown:
        body += [f"if {' or '.join(unknown)}:", *give_up]
    if lacking and len(lacking) == len(binding.outputs):
        body.append(f"if {' and '.join(f'{name} is _fib_of_{name}' for name in lacking)}:")
        body += [f"    {line}" for line in _call(again, binding.inputs)]
    if lacking:
        given = " and ".join(f"{name} is not _fib_of_{name}" for name in lacking)
        body += [f"if not ({given}):", *give_up]
    # A caller who could have left them out expects the outputs, as the function returns them.
    written = binding.outputs if lacking else ()
    body += _call(again, (*binding.inputs, *binding.outputs), written)
    lines = ["def make(_fib_call, _fib_defaults, _fib_same):"]
    lines += [f"    _fib_of_{n} = _fib_defaults[{n!r}]" for n in (*binding.extras, *lacking)]
    lines.append("    def bound(_fib_args, _fib_kwargs, _fib_fallback):")
    return "\n".join([*lines, *(f"        {line}" for line in body), "    return bound\n"])


def _unpacking(signature: Signature) -> list[str]:
    positional = generated.positional_tuple(signature)
    lines = [] if positional == "()" else [f"{positional} = _fib_args"]
    by_keyword = [e.name for e in signature.parameters.values() if e.kind is Parameter.KEYWORD_ONLY]
    lines += [f"{name} = _fib_kwargs[{name!r}]" for name in by_keyword]
    lines += [
        f"{each.name} = {{_fib_name: _fib_value for _fib_name, _fib_value in _fib_kwargs.items() "
        f"if _fib_name not in {by_keyword!r}}}"
        for each in signature.parameters.values()
        if each.kind is Parameter.VAR_KEYWORD
    ]
    return lines


def _call(again: str, passed: tuple[str, ...], written: tuple[str, ...] = ()) -> list[str]:
    call = f"_fib_call({generated.tuple_of(passed)}, None, _fib_again)"
    lines = [f"def _fib_again({', '.join(passed)}):", f"    return _fib_fallback({again})"]
    if not written:
        return [*lines, f"return {call}"]
    outputs = written[0] if len(written) == 1 else generated.tuple_of(written)
    returned = f"return {outputs} if _fib_result is None else _fib_result"
    return [*lines, f"_fib_result = {call}", returned]
