"""Writes the function that is told of the calls of one definition from one place.

Whoever calls must not notice that tracing is on. So the function holds what can be decided
beforehand: which sizes make up the key, and where they stand among the arguments of that place. A
call like one before it costs these sizes and one look-up; only another one is examined.
"""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.routing import generated
from flashinfer_bench.routing.binding import match, same_value
from flashinfer_bench.routing.patch_points import opaque
from flashinfer_bench.routing.routes import Canonical

if TYPE_CHECKING:
    from collections.abc import Mapping
    from inspect import Signature

    from flashinfer_bench.data import Definition
    from flashinfer_bench.routing.patch_points import Note, PatchPoint
    from flashinfer_bench.tracing.recorder import Args, Order, Recorder


def note_of(recorder: Recorder, definition: Definition, point: Optional[PatchPoint]) -> Note:
    """Return what is told of calls from `point`, or in the form of the definition.

    Parameters
    ----------
    recorder : Recorder
        Of the definition.
    definition : Definition
        Names its inputs and outputs.
    point : PatchPoint, optional
        Where calls come from. None, or one without a signature: arguments are the definition's.

    Raises
    ------
    ConfigError
        If no call from there can be one of the definition; the message says why.
    """
    signature = None if point is None else point.signature
    names = list(definition.inputs)
    namespace = {"counters": recorder.counters, "record": recorder.record}
    lines: list[str] = []
    if signature is None:
        namespace["order"] = _plain_order(definition)
        where = [
            f"(kwargs[{name!r}] if kwargs else args[{index}])" for index, name in enumerate(names)
        ]
    else:
        if isinstance(signature, Canonical):
            binding = signature.match(names)
        else:
            binding = match(signature, names, list(definition.outputs))
        where = [_place(signature, name) for name in binding.inputs]
        others = [_place(signature, name) for name in binding.rest]
        for index, name in enumerate(binding.extras):
            others.append(f"not same({_place(signature, name)}, default{index})")
            namespace[f"default{index}"] = signature.parameters[name].default
        namespace["same"] = same_value
        lines += [
            "    def order(args, kwargs):",
            *([f"        if {' or '.join(others)}:", "            return None"] if others else []),
            f"        return [{', '.join(where)}]",
        ]
    lines.append("    def note(args, kwargs):")
    path = recorder.fast_path
    if path is not None:
        namespace |= path.namespace
        lines += [
            "        try:",
            *(f"            a{each} = {where[each]}" for each in sorted(path.positions)),
            f"            if {path.condition}:",
            "                counters.duplicates += 1",
            "                return",
            "        except Exception:  # examined below",
            "            pass",
        ]
    lines += ["        record(args, kwargs, order)", "    return note"]
    source = "\n".join([f"def make({', '.join(namespace)}):", *lines]) + "\n"
    note: Note = generated.factory(source)(**namespace)
    return opaque(note)


def _plain_order(definition: Definition) -> Order:
    """Return what orders arguments that are inputs, or inputs and outputs, of the definition."""
    names = list(definition.inputs)
    known = [*names, *definition.outputs]

    def order(args: Args, kwargs: Optional[Mapping[str, Any]]) -> Optional[list[Any]]:
        kwargs = kwargs or {}
        total = len(args) + len(kwargs)
        given = {**dict(zip(known, args, strict=False)), **kwargs}
        if total not in (len(names), len(known)) or len(given) != total:
            return None
        if not all(name in given for name in names) or not given.keys() <= {*known}:
            return None
        return [given[name] for name in names]

    return order


def _place(signature: Signature, name: str) -> str:
    """Return Python for an argument; of ``*args`` and ``**kwargs``, for all that is in them."""
    kind = signature.parameters[name].kind
    index = list(signature.parameters).index(name)
    if kind is Parameter.KEYWORD_ONLY:
        return f"kwargs[{name!r}]"
    if kind is Parameter.VAR_POSITIONAL:
        return f"args[{index}:]"
    if kind is Parameter.VAR_KEYWORD:
        named = [p.name for p in signature.parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
        return f"[key for key in kwargs or () if key not in {named!r}]"
    return f"args[{index}]"
