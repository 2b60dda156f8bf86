"""Writes the function that is told of the calls of one definition from one place.

Whoever calls must not notice that tracing is on. So the function holds what can be decided
beforehand: which sizes make up the key, and where they stand among the arguments of that place. A
call like one before it costs these sizes and one look-up; only another one is examined.
"""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.integration import generated
from flashinfer_bench.integration.binding import match, same_value
from flashinfer_bench.integration.canonical import Canonical
from flashinfer_bench.integration.opaque import opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.binding import Binding
    from flashinfer_bench.integration.slots import Note, Slot
    from flashinfer_bench.tracing.recorder import Args, Order, Recorder

    Inputs = Optional[list[Any]]

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)


def note_of(recorder: Recorder, definition: Definition, slot: Optional[Slot]) -> Note:
    """Return what is told of calls from `slot`, or in the form of the definition.

    Parameters
    ----------
    recorder : Recorder
        Of the definition.
    definition : Definition
        Names its inputs and outputs.
    slot : Slot, optional
        Where calls come from. None, or one without a signature: arguments are the definition's.

    Raises
    ------
    ConfigError
        If no call from there can be one of the definition; the message says why.
    """
    signature = None if slot is None else slot.signature
    if signature is None:
        order = _plain_order(definition)
        return _write(recorder, order, plain=True, where={})
    inputs = list(definition.inputs)
    if isinstance(signature, Canonical):
        binding = signature.match(inputs)
    else:
        binding = match(signature, inputs, list(definition.outputs))
    where = {index: _place(signature, name) for index, name in enumerate(binding.inputs)}
    return _write(recorder, _bound_order(signature, binding), plain=False, where=where)


def _write(recorder: Recorder, order: Order, *, plain: bool, where: Mapping[int, str]) -> Note:
    path = recorder.fast_path
    namespace: dict[str, Any] = {"counters": recorder.counters, "record": recorder.record}
    namespace["order"] = order
    lines = ["    def note(args, kwargs):"]
    if path is not None:
        positions = sorted(path.positions)
        by_place = [f"a{each} = {where.get(each, f'args[{each}]')}" for each in positions]
        by_name = [f"a{each} = kwargs[{recorder.layout.names[each]!r}]" for each in positions]
        lines += [
            "        try:",
            *(_either(by_name, by_place) if plain else [f"            {e}" for e in by_place]),
            f"            if {path.condition}:",
            "                counters.duplicates += 1",
            "                return",
            "        except Exception:  # examined below",
            "            pass",
        ]
        namespace |= path.namespace
    lines += ["        record(args, kwargs, order)", "    return note"]
    source = "\n".join([f"def make({', '.join(namespace)}):", *lines]) + "\n"
    note: Note = generated.factory(source)(**namespace)
    return opaque(note)


def _either(by_name: list[str], by_place: list[str]) -> list[str]:
    if not by_place:
        return []
    return [
        "            if kwargs:",
        *(f"                {line}" for line in by_name),
        "            else:",
        *(f"                {line}" for line in by_place),
    ]


def _plain_order(definition: Definition) -> Order:
    """Return what orders arguments that are inputs, or inputs and outputs, of the definition."""
    names, outputs = list(definition.inputs), list(definition.outputs)
    counts = (len(names), len(names) + len(outputs))
    known = {*names, *outputs}

    def order(args: Args, kwargs: Optional[Mapping[str, Any]]) -> Inputs:
        kwargs = kwargs or {}
        if len(args) + len(kwargs) not in counts or not kwargs.keys() <= known:
            return None
        given = {**dict(zip((*names, *outputs), args, strict=False)), **kwargs}
        if len(given) != len(args) + len(kwargs) or any(name not in given for name in names):
            return None
        return [given[name] for name in names]

    return order


def _bound_order(signature: Signature, binding: Binding) -> Order:
    """Return what finds the inputs among the arguments of a function."""
    inputs = [_finder(signature, name) for name in binding.inputs]
    extras = [(_finder(signature, e), signature.parameters[e].default) for e in binding.extras]
    rest = [_finder(signature, name) for name in binding.rest]

    def order(args: Args, kwargs: Optional[Mapping[str, Any]]) -> Inputs:
        if any(find(args, kwargs) for find in rest):
            return None
        if any(not same_value(find(args, kwargs), default) for find, default in extras):
            return None
        return [find(args, kwargs) for find in inputs]

    return order


def _place(signature: Signature, name: str) -> str:
    """Return Python for an argument, among ``args`` and ``kwargs``."""
    if signature.parameters[name].kind in _BY_POSITION:
        return f"args[{list(signature.parameters).index(name)}]"
    return f"kwargs[{name!r}]"


def _finder(signature: Signature, name: str) -> Callable[[Args, Any], Any]:
    """Return what finds an argument; of ``*args`` and ``**kwargs``, all that is in them."""
    kind = signature.parameters[name].kind
    index = list(signature.parameters).index(name)
    if kind in _BY_POSITION:
        return lambda args, kwargs: args[index]
    if kind is Parameter.VAR_POSITIONAL:
        return lambda args, kwargs: args[index:]
    if kind is Parameter.KEYWORD_ONLY:
        return lambda args, kwargs: kwargs[name]
    others = {each.name for each in signature.parameters.values() if each.kind in _BY_NAME}
    return lambda args, kwargs: {key: kwargs[key] for key in kwargs or {} if key not in others}
